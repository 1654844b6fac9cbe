"""Inside the job, on a node: check it, start torchrun's elastic agent, record what happens."""
