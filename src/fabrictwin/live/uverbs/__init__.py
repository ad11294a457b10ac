"""The commands of /dev/infiniband/uverbsN, as the kernel's uverbs and rxe answer them."""
