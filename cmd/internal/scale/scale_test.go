package scale

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A small job, which a simulation of the real code reads in less than a second.
func small(nodes int) setup { return setup{nodes: nodes, files: 32, size: 110_000, epochs: 2} }

// In the cold epoch, the source serves each byte once, in little more than the time that its
// bandwidth needs, and then none. No node reads much more than others.
func TestColdEpoch(t *testing.T) {
	for _, nodes := range []int{16, 32} {
		s := small(nodes)
		r := run(t, s)
		for i, e := range r.epochs {
			if want := 1 - float64(i); e.source != want || e.failed != 0 {
				t.Errorf("%d nodes, epoch %d: the source served %.4f of the dataset, want %v; %d reads failed", nodes, i+1, e.source, want, e.failed)
			}
		}
		if got := r.epochs[0].seconds / s.floor(true); got < 1 || got > 1.1 {
			t.Errorf("%d nodes: the cold epoch took %.3f of its floor", nodes, got)
		}
		// With 32 files for each node, the standard deviation is 0.18.
		if got := maxOfMean(r.read); got > 1.8 {
			t.Errorf("%d nodes: one reads %.2f times as many bytes from the source as the mean", nodes, got)
		}
	}
}

// Each node reads all files.
func TestAllReadAll(t *testing.T) {
	s := setup{nodes: 16, files: 16, size: 110_000, epochs: 2, all: true}
	r := run(t, s)
	if e := r.epochs; e[0].source != 1 || e[1].source != 0 || e[0].failed+e[1].failed != 0 {
		t.Errorf("the epochs are %+v", e)
	}
}

// Each group of nodes reads the files that its nodes need from the source.
func TestGroups(t *testing.T) {
	s := setup{nodes: 32, group: 8, files: 8, size: 110_000, epochs: 1, all: true}
	if e := run(t, s).epochs[0]; e.source != 4 || e.failed != 0 {
		t.Errorf("4 groups: the epoch is %+v", e)
	}
}

// A lost node costs what only it held, and no read fails.
func TestLostNode(t *testing.T) {
	for _, s := range []setup{
		small(16),
		{nodes: 16, files: 8, size: 110_000, all: true},
		{nodes: 16, files: 32, size: 110_000, model: true},
	} {
		files := make([]unit, s.nodes*s.files)
		for i := range files {
			files[i] = unit{fileName(i), 1}
		}
		r := newRoster(t, 0, s.nodes)
		most := float64(load(r, owners(r, files), files)[s.nodes-1])
		for s.kill = 1; s.kill <= 2; s.kill++ {
			s.epochs = 3
			extra := -1.0
			for i, e := range run(t, s).epochs {
				extra += e.source
				if e.failed != 0 {
					t.Errorf("%+v: in epoch %d, %d reads failed", s, i+1, e.failed)
				}
			}
			if got := math.Round(extra * float64(len(files))); got < 1 || got > most {
				t.Errorf("%+v: the source served %v files more, want 1 to %v", s, got, most)
			}
		}
	}
}

// The same seed has the same result, as far as it does not depend on the scheduler.
func TestSeed(t *testing.T) {
	a, b := run(t, small(16)), run(t, small(16))
	if !slices.Equal(a.read, b.read) || a.epochs[0].source != b.epochs[0].source {
		t.Errorf("the nodes have read %d and %d bytes", a.read, b.read)
	}
}

// The model reads what the real code reads, in the same time.
func TestModel(t *testing.T) {
	s := small(16)
	real := run(t, s)
	s.model = true
	model := run(t, s)
	if !slices.Equal(real.read, model.read) {
		t.Errorf("the nodes have read %d bytes, those of the model %d", real.read, model.read)
	}
	if a, b := real.epochs[0].seconds, model.epochs[0].seconds; a > 1.1*b || b > 1.1*a {
		t.Errorf("the cold epoch takes %.3f s, that of the model %.3f s", a, b)
	}
}

// The models use the constants of the code.
func TestConstants(t *testing.T) {
	for file, lines := range map[string][]string{
		"client.go":        {"firstPause = time.Second ", "maxPause   = 30 * time.Second ", "const pingTimeout = time.Second\n"},
		"object.go":        {"refusalTTL = 10 * time.Second\n"},
		"peer.go":          {"choices = 2\n", "connectTimeout = 500 * time.Millisecond\n", "idleTimeout       = 90 * time.Second\n"},
		"server.go":        {"maxConnections = 16384\n", "descriptors(maxConnections, 4)"},
		"watch.go":         {"stall       = 700 * time.Millisecond\n"},
		"gossip/gossip.go": {"probeInterval = 2 * time.Second\n", "maxTargets = 4\n"},
		"gossip/run.go":    {"c := memberlist.DefaultLANConfig()\n", "c.GossipInterval = 500 * time.Millisecond\n", "c.EnableCompression = false\n"},
	} {
		text, err := os.ReadFile(filepath.Join("../../../drivers/peer", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains(string(text), line) {
				t.Errorf("drivers/peer/%s does not contain %q", file, line)
			}
		}
	}
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "github.com/hashicorp/memberlist v0.7.0\n") {
		t.Error("the formulas of gossip_test.go are those of memberlist v0.7.0")
	}
}
