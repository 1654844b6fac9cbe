print("a step")
