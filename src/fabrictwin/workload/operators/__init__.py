"""Times of the kernels that training and serving run, by shape: forms with few constants, and measured residuals."""
