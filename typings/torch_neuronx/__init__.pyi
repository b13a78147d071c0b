# Registers the device and back-end "neuron" where the image is TorchNeuron's.
