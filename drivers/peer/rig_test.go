package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(sendfileDir); dir != "" {
		readCopyFromItself(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// mtime is the modification time of the files of tests.
var mtime = time.Unix(1700000000, 123456789)

// content returns n bytes without a pattern.
func content(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// infoOf describes a file with a content.
func infoOf(name string, data []byte) drivers.Info {
	return drivers.Info{Name: name[strings.LastIndexByte(name, '/')+1:], Mode: regular | 0o444, Size: int64(len(data)), Mtime: mtime}
}

// memory is a Files, and a source, that holds files in memory.
type memory struct {
	mu     sync.Mutex
	files  map[string][]byte
	opens  int
	before func(ctx context.Context, off int64) error // is called before each read; nil: nothing is

	refuse error // of OpenShared
	copies bool  // Objects have stored checksums
}

func newMemory(files map[string][]byte) *memory { return &memory{files: files} }

func (m *memory) OpenShared(ctx context.Context, name string, want drivers.Info, rank int) (drivers.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	data, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	if !infoOf(name, data).SameVersion(want) {
		return nil, drivers.ErrChanged
	}
	m.opens++
	o := &memoryObject{memory: m, info: infoOf(name, data), data: data}
	if m.copies {
		return summedObject{o}, nil
	}
	return o, nil
}

// source returns the function that opens a file here as the source.
func (m *memory) source(name string, info drivers.Info) func(context.Context) (drivers.Object, error) {
	return func(ctx context.Context) (drivers.Object, error) { return m.OpenShared(ctx, name, info, 0) }
}

// beforeRead sets what is called before each read. Requests of clients that have gone may still read.
func (m *memory) beforeRead(f func(ctx context.Context, off int64) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

// opened returns how often files were opened.
func (m *memory) opened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opens
}

type memoryObject struct {
	memory *memory
	info   drivers.Info
	data   []byte
}

func (o *memoryObject) Info() drivers.Info { return o.info }
func (o *memoryObject) Close() error       { return nil }

func (o *memoryObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	o.memory.mu.Lock()
	before := o.memory.before
	o.memory.mu.Unlock()
	if before != nil {
		if err := before(ctx, off); err != nil {
			return 0, err
		}
	}
	return bytes.NewReader(o.data).ReadAt(p, off)
}

// A summedObject is a memoryObject with stored checksums.
type summedObject struct{ *memoryObject }

func (o summedObject) Checksums(first, n int64) ([]uint32, error) {
	var sums []uint32
	for b := first; b < first+n; b++ {
		sums = append(sums, drivers.Checksum(0, o.data[b*block:min((b+1)*block, int64(len(o.data)))]))
	}
	return sums, nil
}

// secret is the secret of tests.
var secret = func() *Secret {
	s, err := ParseSecret(NewSecret())
	if err != nil {
		panic(err)
	}
	return s
}()

// A rig is nodes on this machine, of which the first is the client.
type rig struct {
	t       testing.TB
	nodes   []*Node
	servers []*Server
	source  *memory
}

// newRig makes n nodes with the names a, b, … Those from b on serve files[0], files[1], …; nil serves
// nothing. change changes the Config of a node before it is made.
func newRig(t testing.TB, source *memory, change func(*Config), files ...Files) *rig {
	t.Helper()
	r := &rig{t: t, source: source}
	var members []roster.Node
	for i := range len(files) + 1 {
		members = append(members, roster.Node{Name: string(rune('a' + i)), Address: fmt.Sprintf("127.0.0.1:%d", i+1)})
	}
	all, err := roster.New(members)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range members {
		cfg := Config{Roster: all, Self: m.Name, Dataset: "dataset", Secret: secret, Log: slog.New(slog.DiscardHandler)}
		if change != nil {
			change(&cfg)
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		r.nodes = append(r.nodes, n)
		if i == 0 || files[i-1] == nil {
			r.servers = append(r.servers, nil)
			continue
		}
		s, err := n.Listen("127.0.0.1:0", files[i-1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		r.servers = append(r.servers, s)
		r.setAddress(i, s.Addr().String())
	}
	return r
}

// setAddress sets the address of a node.
func (r *rig) setAddress(i int, address string) { r.nodes[0].peers[i].address = address }

// introduce tells the first node the instance of node i, so that its first request is not refused.
func (r *rig) introduce(i int) *peer {
	p := r.nodes[0].peers[i]
	p.instance.Store(r.nodes[i].instance)
	return p
}

// hostile replaces the server of node i by one that calls f with what that would answer.
func (r *rig) hostile(i int, f func(w http.ResponseWriter, req *http.Request, answer *httptest.ResponseRecorder)) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rec := httptest.NewRecorder()
		if req.URL.Path != filePath {
			r.servers[i].ServeHTTP(w, req)
			return
		}
		r.servers[i].ServeHTTP(rec, req)
		f(w, req, rec)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	r.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	r.setAddress(i, strings.TrimPrefix(server.URL, "http://"))
	r.introduce(i)
}

// owned returns a name whose owners are the nodes with the given indexes, in this order.
func (r *rig) owned(by ...int) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("dir/file-%d", i)
		if got := r.nodes[0].cfg.Roster.Owners(name, len(by)); fmt.Sprint(got) == fmt.Sprint(by) {
			return name
		}
	}
}

// open opens a file of the source by way of the first node.
func (r *rig) open(name string) drivers.Object {
	r.t.Helper()
	info := infoOf(name, r.source.files[name])
	o, err := r.nodes[0].OpenVersion(context.Background(), name, info, r.source.source(name, info))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { o.Close() })
	return o
}

// put puts a file into stores.
func put(name string, data []byte, stores ...*memory) {
	for _, m := range stores {
		m.files[name] = data
	}
}

// wantContent reads all of o at once, and compares it.
func (r *rig) wantContent(o drivers.Object, want []byte) {
	r.t.Helper()
	got := make([]byte, len(want))
	n, err := o.ReadAt(context.Background(), got, 0)
	if n != len(want) || err != nil && err != io.EOF || !bytes.Equal(got, want) {
		r.t.Fatalf("read %d of %d bytes, %v; equal: %v", n, len(want), err, bytes.Equal(got, want))
	}
}

// stats returns the counters that node n has of node i.
func (r *rig) stats(n, i int) Counters { return r.nodes[n].Stats()[i].Counters }

var errSource = errors.New("the source has failed")
