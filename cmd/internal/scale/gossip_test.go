package scale

import (
	"math"
	"time"
)

// The settings of memberlist v0.7.0 that drivers/peer/gossip uses: its own (settings in run.go), and
// else those of DefaultLANConfig (config.go). TestConstants compares them.
const (
	probeInterval    = 2 * time.Second
	gossipInterval   = 500 * time.Millisecond
	gossipNodes      = 3
	pushPullInterval = 30 * time.Second
	retransmitMult   = 4
	suspicionMult    = 4
	suspicionMaxMult = 6
	packetSize       = 1400
	pushPullScaleMin = 32 // nodes (pushPullScaleThreshold in util.go)
)

// The sizes of messages of memberlist, in bytes: MessagePack with the names of the fields (net.go),
// for nodes with names of 9 bytes, to which gossip adds 27, and IPv4 addresses. An encrypted packet
// has 29 bytes more (encryptOverhead in security.go), the label 18 (label.go), and the headers of UDP
// and IP 28.
const (
	pingSize     = 133
	ackSize      = 18
	aliveSize    = 94
	nodeSize     = 100 // of a node in a push/pull
	packetHeader = 29 + 18 + 28
)

// pushPullEvery is pushPullScale of util.go.
func pushPullEvery(n int) time.Duration {
	if n <= pushPullScaleMin {
		return pushPullInterval
	}
	return time.Duration(math.Ceil(math.Log2(float64(n))-math.Log2(pushPullScaleMin))+1) * pushPullInterval
}

// suspicion is suspicionTimeout of util.go: how long a suspected node has to answer, at least.
func suspicion(n int) time.Duration {
	scale := max(1, math.Log10(max(1, float64(n))))
	return suspicionMult * time.Duration(scale*1000) * probeInterval / 1000
}

// retransmits is retransmitLimit of util.go: how often each node passes on a message.
func retransmits(n int) int {
	return retransmitMult * int(math.Ceil(math.Log10(float64(n+1))))
}

// quietBytes is what a node sends in a second while nothing changes: pings and their answers, and
// its list of nodes, which it sends in the push/pull that it starts and in one that it answers.
func quietBytes(n int) float64 {
	probes := float64(pingSize+ackSize+2*packetHeader) / probeInterval.Seconds()
	return probes + 2*float64(n*nodeSize)/pushPullEvery(n).Seconds()
}

// joinTime is how long the messages about n nodes that start at the same time are in flight: each
// node passes each of them on, in gossipNodes packets in each interval.
func joinTime(n int) time.Duration {
	inPacket := (packetSize - packetHeader) / (aliveSize + 2) // compoundOverhead
	packets := math.Ceil(float64(n*retransmits(n)) / float64(inPacket))
	return time.Duration(packets / gossipNodes * float64(gossipInterval))
}
