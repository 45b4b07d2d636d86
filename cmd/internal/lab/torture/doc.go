// Package torture reads a mount of Milkweed in many ways while faults hit its tiers, its
// source and its daemon, and compares every byte with a model. docs/reliability.md has the
// rules.
//
// A run is a sequence of cycles, each with a daemon of its own. PlanCycle derives a cycle
// from the seed of the run. The suite does the events of a cycle one after the other, so
// that none of its own operations meets a disk that hangs. Meanwhile the processes of a
// pool read files, and an oracle judges what they saw: it knows the versions of each file,
// and the windows in which an error is allowed.
package torture
