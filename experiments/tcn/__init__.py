"""The temporal convolutional network (TCN) of Bai et al. 2018 and recurrent models on its tasks."""
