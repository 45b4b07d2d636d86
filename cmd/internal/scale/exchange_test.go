package scale

import (
	"fmt"
	"math"
	"testing"

	"github.com/milkweedfs/milkweed/placement/exchange"
)

// An exchanged is what some epochs of partial local shuffling take. Bytes are multiples of the mean share
// of a node, unless stated otherwise.
type exchanged struct {
	received     float64 // by a node before an epoch: the mean
	receivedMost float64 // the most that one receives before one epoch
	shareMost    float64 // the largest share
	room         float64 // for the files of an epoch and the next one: the mean
	roomMost     float64
	left         float64 // fraction of the files of the first shares that are there in the last epoch
}

// exchangeEpochs runs the plan of some epochs. A file that returns to the node that held it one epoch
// before does not count as received: it is still there.
func exchangeEpochs(t *testing.T, files []unit, nodes, epochs int, fraction float64, byBytes bool) (r exchanged) {
	t.Helper()
	cfg := exchange.Config{Files: len(files), Nodes: nodes, Seed: 1, Fraction: fraction}
	var total int64
	for _, f := range files {
		total += f.size
		if byBytes {
			cfg.Sizes = append(cfg.Sizes, f.size)
		}
	}
	plan, err := exchange.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mean := float64(total) / float64(nodes)
	first := plan.Start()
	var before *exchange.Epoch
	now := first.Clone()
	for range epochs {
		next := now.Clone()
		next.Advance()
		share, room, received := make([]int64, nodes), make([]int64, nodes), make([]int64, nodes)
		for i, f := range files {
			from, to := now.Holder(i), next.Holder(i)
			share[from] += f.size
			room[from] += f.size
			if from == to {
				continue
			}
			room[to] += f.size
			if before == nil || before.Holder(i) != to {
				received[to] += f.size
			}
		}
		for n := range nodes {
			r.received += float64(received[n]) / mean / float64(nodes*epochs)
			r.room += float64(room[n]) / mean / float64(nodes*epochs)
			r.receivedMost = max(r.receivedMost, float64(received[n])/mean)
			r.shareMost = max(r.shareMost, float64(share[n])/mean)
			r.roomMost = max(r.roomMost, float64(room[n])/mean)
		}
		before, now = now, next
	}
	for i := range files {
		if first.Holder(i) == now.Holder(i) {
			r.left += 1 / float64(len(files))
		}
	}
	return r
}

// leftInTheory returns the expectation of exchanged.left.
func leftInTheory(nodes, epochs int, fraction float64) float64 {
	p := 1.0
	for range epochs {
		p = p*(1-fraction) + (1-p)*fraction/float64(nodes-1)
	}
	return p
}

// exchangeRows writes the table of partial local shuffling. Ten epochs show the extremes well enough.
func exchangeRows(t *testing.T, add func(...any)) {
	const epochs = 10
	files := images(1_281_167, 0.6)
	for _, n := range []int{16, 64, 256, 1024, 2048, 4096} {
		for _, q := range []float64{0, 0.1, 0.3, 0.5, 1} {
			count1, bytes := exchangeEpochs(t, files, n, epochs, q, false), exchangeEpochs(t, files, n, epochs, q, true)
			add(count(n), q, fmt.Sprintf("%.3f", count1.received), fmt.Sprintf("%.3f", float64(n-1)/float64(n)),
				fmt.Sprintf("%.2f, %.2f", count1.receivedMost, bytes.receivedMost), fmt.Sprintf("%.2f, %.2f", count1.shareMost, bytes.shareMost),
				fmt.Sprintf("%.3f", count1.room), fmt.Sprintf("%.2f, %.2f", count1.roomMost, bytes.roomMost),
				fmt.Sprintf("%.4f (%.4f)", count1.left, leftInTheory(n, epochs, q)))
		}
	}
}

// What moves, the room, and how the shares mix are as computed.
func TestExchange(t *testing.T) {
	files := images(20_000, 0.6)
	for _, nodes := range []int{4, 50} {
		for _, q := range []float64{0, 0.3, 1} {
			for _, byBytes := range []bool{false, true} {
				r := exchangeEpochs(t, files, nodes, 6, q, byBytes)
				received := q - q*q/float64(nodes-1)*5/6 // what returns at once is still there, except before epoch 1
				if math.Abs(r.received-received) > 0.01 || math.Abs(r.room-1-q) > 0.01 {
					t.Errorf("%d nodes, Q = %v: received %.4f, want %.4f; room %.4f, want %v", nodes, q, r.received, received, r.room, 1+q)
				}
				if want := leftInTheory(nodes, 6, q); math.Abs(r.left-want) > 0.015 {
					t.Errorf("%d nodes, Q = %v: %.4f of the first shares are left, want %.4f", nodes, q, r.left, want)
				}
				if byBytes && r.shareMost > 1.02 {
					t.Errorf("%d nodes, Q = %v: a share is %.3f times the mean", nodes, q, r.shareMost)
				}
			}
		}
	}
}
