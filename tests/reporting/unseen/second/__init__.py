"""A second set of cases, written by somebody who knew neither the rules nor the first set."""
