package scale

import (
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

var (
	update = flag.Bool("update", false, "simulate, and rewrite the tables of "+document)
	only   = flag.String("table", "", "rewrite only the table of this name")
)

const document = "../../../docs/scale.md"

// A table is one of those of the document.
type table struct {
	name string
	head string
	rows func(t *testing.T, add func(cells ...any))
}

var tables = []table{
	{"epochs", "nodes | files for each | code | cold epoch: source bytes | time, of the floor | second epoch: source bytes | between nodes | largest share of an owner | connections of a node | memory of a node", epochRows},
	{"owners", "nodes | files for each | largest share: files of equal size | of different sizes | two classes of nodes | 8,192 records in ranges | as whole files", ownerRows},
	{"failures", "nodes | code | lost in epoch | more source bytes, in shares of a node | more time | reads that failed", failureRows},
	{"groups", "nodes | job | nodes in a group | source bytes, epoch 1 | epoch 2 | epoch 3 | time of epoch 1 | its floor | connections of a node", groupRows},
	{"connections", "nodes in a group | connections at 10 files/s | at 100 files/s | at 1,000 files/s | memory of these | limit of descriptors, at least", connectionRows},
	{"exchange", "nodes | Q | received by a node | with global shuffling | most that one receives: by number, by bytes | largest share | room | largest room | first share left after 10 epochs (theory)", exchangeRows},
	{"gossip", "nodes in a group | sent by a node, at rest | time between push/pulls | size of one | after a common start: messages in flight for | a lost node is declared dead after", gossipRows},
}

// TestTables writes the tables of the document if -update is given. Otherwise it finds their places.
func TestTables(t *testing.T) {
	for _, table := range tables {
		if !*update || *only != "" && *only != table.name {
			if got := table.replace(t, nil); !strings.HasPrefix(got, table.header()) {
				t.Errorf("the table %s of %s has another header; `make scale` rewrites it", table.name, document)
			}
			continue
		}
		began := time.Now()
		var b strings.Builder
		b.WriteString(table.header())
		table.rows(t, func(cells ...any) {
			for _, c := range cells {
				fmt.Fprintf(&b, "| %v ", c)
			}
			b.WriteString("|\n")
			t.Logf("%s: %v", table.name, cells)
		})
		text := b.String()
		table.replace(t, &text)
		t.Logf("%s took %.0f s", table.name, time.Since(began).Seconds())
	}
}

// header returns the first two lines of the table.
func (table table) header() string {
	return fmt.Sprintf("| %s |\n|%s\n", table.head, strings.Repeat("---|", 1+strings.Count(table.head, " | ")))
}

// replace returns the text of the table in the document, and replaces it unless by is nil.
func (table table) replace(t *testing.T, by *string) string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- begin: "+table.name+" -->\n", "<!-- end: "+table.name+" -->\n"
	before, rest, ok1 := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", document, begin, end)
	}
	if by != nil {
		if err := os.WriteFile(document, []byte(before+begin+*by+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// The kinds of nodes, as the tables name them.
const (
	realCode  = "real"
	modelCode = "model"
)

// sizes are the numbers of nodes. The last ones are beyond the real code.
var sizes = []int{16, 64, 256, 1024, 4096, 10000}

const (
	most      = 1024    // nodes of the real code
	perNode   = 64      // files for each node
	imageSize = 110_000 // bytes; the mean of ImageNet
)

func epochRows(t *testing.T, add func(...any)) {
	for _, n := range sizes {
		for _, model := range []bool{false, true} {
			s := setup{nodes: n, files: perNode, size: imageSize, epochs: 2, model: model}
			if n > most {
				s.files = perNode / 4
			}
			code, memory := realCode, ""
			if model {
				code, memory = modelCode, "–"
			} else if n > most {
				continue
			}
			r := run(t, s)
			if !model {
				memory = fmt.Sprintf("%.1f MB", float64(r.heap)/1e6)
			}
			cold, warm := r.epochs[0], r.epochs[1]
			add(count(n), s.files, code, fmt.Sprintf("%.4f", cold.source), fmt.Sprintf("%.3f", cold.seconds/s.floor(true)),
				fmt.Sprintf("%.4f", warm.source), fmt.Sprintf("%.3f", warm.peers), fmt.Sprintf("%.2f", maxOfMean(r.read)),
				fmt.Sprintf("%.0f", r.sockets), memory)
			t.Logf("%d nodes, %s: %.0f s, at most %d connections, %+v", n, code, r.wall.Seconds(), r.most, r.epochs)
		}
	}
}

func ownerRows(t *testing.T, add func(...any)) {
	const imageNet = 1_281_167
	equal, spread := images(imageNet, 0), images(imageNet, 0.6)
	ranges, whole := records(8192, 64<<20), records(8192, math.MaxInt64)
	for _, n := range sizes {
		r, w := newRoster(t, 0, n), weighted(t, n)
		ratio := func(r *roster.Roster, owners []int, units []unit) string {
			return fmt.Sprintf("%.2f", maxOfMean(load(r, owners, units)))
		}
		names, classes := owners(r, equal), "–" // the names of spread are the same
		if n <= 4*most {
			classes = ratio(w, owners(w, equal), equal)
		}
		add(count(n), count(imageNet/n), ratio(r, names, equal), ratio(r, names, spread), classes,
			ratio(r, owners(r, ranges), ranges), ratio(r, owners(r, whole), whole))
	}
}

func failureRows(t *testing.T, add func(...any)) {
	for _, n := range sizes[:3] {
		for _, model := range []bool{false, true} {
			code := realCode
			if model {
				code = modelCode
			}
			s := setup{nodes: n, files: perNode, size: imageSize, epochs: 3, model: model}
			without := run(t, s)
			for kill := 1; kill <= 2; kill++ {
				s.kill = kill
				r := run(t, s)
				bytes, failed := 0.0, int64(0)
				for i, e := range r.epochs {
					bytes += e.source - without.epochs[i].source
					failed += e.failed
				}
				add(count(n), code, kill, fmt.Sprintf("%.2f", bytes*float64(n)),
					fmt.Sprintf("%.2f s", r.epochs[kill-1].seconds-without.epochs[kill-1].seconds), failed)
			}
		}
	}
}

func groupRows(t *testing.T, add func(...any)) {
	for _, job := range []struct {
		name string
		setup
		groups []int
	}{
		{"a share each", setup{nodes: 256, files: perNode}, []int{1, 16, 64, 128, 256}},
		{"all files each", setup{nodes: 64, files: 8, all: true}, []int{1, 8, 16, 32, 64}},
	} {
		for _, group := range job.groups {
			s := job.setup
			s.group, s.size, s.epochs = group, imageSize, 3
			r := run(t, s)
			cells := []any{s.nodes, job.name, group}
			for _, e := range r.epochs {
				cells = append(cells, fmt.Sprintf("%.2f", e.source))
			}
			add(append(cells, fmt.Sprintf("%.2f s", r.epochs[0].seconds), fmt.Sprintf("%.2f s", s.floor(true)), fmt.Sprintf("%.0f", r.sockets))...)
		}
	}
}

// connectionRows computes how many other nodes a node reads from before a connection is closed
// because it is idle (idleTimeout of drivers/peer): as many read from it. A server takes a quarter of
// the descriptors for connections at most.
func connectionRows(t *testing.T, add func(...any)) {
	const idleSeconds = 90
	memory := connectionMemory(t)
	for _, n := range sizes {
		others := float64(n - 1)
		cells, both := []any{count(n)}, 0
		for _, rate := range []float64{10, 100, 1000} {
			used := others * -math.Expm1(idleSeconds*rate*math.Log1p(-1/others))
			both = 2 * int(math.Round(used))
			cells = append(cells, count(both))
		}
		add(append(cells, fmt.Sprintf("%.1f MB", float64(both)*memory/1e6), count(4*(n-1)))...)
	}
}

// connectionMemory returns the bytes of memory that an idle connection of net/http takes, the mean of
// its two ends.
func connectionMemory(t *testing.T) float64 {
	t.Helper()
	const n = 400
	var ready, done sync.WaitGroup
	ready.Add(n)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		ready.Done()
		ready.Wait()
	}))
	defer server.Close()
	client := &http.Transport{MaxIdleConnsPerHost: n}
	defer client.CloseIdleConnections()
	before := heap()
	for range n {
		done.Go(func() {
			resp, err := (&http.Client{Transport: client}).Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
	done.Wait()
	return float64(heap()-before) / (2 * n)
}

func gossipRows(_ *testing.T, add func(...any)) {
	for _, n := range sizes {
		least := suspicion(n) + probeInterval
		add(count(n), fmt.Sprintf("%.1f KB/s", quietBytes(n)/1e3), fmt.Sprintf("%.0f s", pushPullEvery(n).Seconds()), fmt.Sprintf("%.1f KB", float64(n*nodeSize)/1e3),
			fmt.Sprintf("%.0f s", joinTime(n).Seconds()), fmt.Sprintf("%.0f to %.0f s", least.Seconds(), (suspicionMaxMult*suspicion(n)+probeInterval).Seconds()))
	}
}

// count writes a number with separators of thousands.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
