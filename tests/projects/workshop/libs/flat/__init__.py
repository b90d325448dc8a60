flat_name = __name__
