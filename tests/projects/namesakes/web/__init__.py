other = "modules"
