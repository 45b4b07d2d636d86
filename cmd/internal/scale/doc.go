// Package scale simulates a job on up to 10,000 nodes that share their tiers. Each simulated node has
// the metadata container, tiers and placement handler of a real one, and the roster decides who owns a
// file. The source, the network and the client of the peers are models. The clock is that of
// testing/synctest, which advances when nothing can run. `make scale` runs it and writes the tables of
// docs/scale.md.
package scale
