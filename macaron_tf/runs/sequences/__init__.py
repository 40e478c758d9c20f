"""TCNs and recurrent models on the sequence tasks of Bai et al. 2018."""
