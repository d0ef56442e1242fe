"""How the models of each family take pictures, one file each."""
