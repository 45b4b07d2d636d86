// Stub is every command and process of Slurm in a cluster of package slurmtest. Its name tells which.
package main

import "github.com/milkweedfs/milkweed/cmd/internal/lab/slurmtest"

func main() { slurmtest.Main() }
