// Package peertest tests peers: real daemons on the nodes of package netlab, which share a simulated
// parallel file system that counts what is read.
package peertest
