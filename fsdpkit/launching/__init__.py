"""Inside the job, on a node: check it, start torchrun's elastic agent, keep the record."""
