"""`macaron tcn`: compares a TCN with recurrent models on sequence tasks."""
