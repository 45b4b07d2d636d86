package roster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNew(t *testing.T) {
	r, err := New([]Node{{"b", "h:2", 0}, {"a", "h:1", 3}, {"c", "", 1}, {"d", "", 1}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []Node{{"a", "h:1", 3}, {"b", "h:2", 1}, {"c", "", 1}, {"d", "", 1}}; !slices.Equal(r.Nodes(), want) {
		t.Errorf("the nodes are %v, want %v", r.Nodes(), want)
	}
	for want, nodes := range map[string][]Node{
		"has no nodes":                  nil,
		"node a is in the roster twice": {{"a", "h:1", 1}, {"b", "h:2", 1}, {"a", "h:3", 1}},
		"same address h:1":              {{"a", "h:1", 1}, {"b", "h:1", 1}},
		`name "a b" has other`:          {{"a b", "h:1", 1}},
		`name "a\n" has`:                {{"a\n", "h:1", 1}},
		"has no name":                   {{"", "h:1", 1}},
		"negative weight":               {{"a", "h:1", -1}},
		"more than 65536":               make([]Node, MaxNodes+1),
	} {
		if _, err := New(nodes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// The hash covers what decides ownership, and nothing else.
func TestHash(t *testing.T) {
	hash := func(nodes ...Node) string {
		t.Helper()
		r, err := New(nodes)
		if err != nil {
			t.Fatal(err)
		}
		return r.Hash()
	}
	a, b := Node{"a", "h:1", 1}, Node{"b", "h:2", 1}
	same := hash(a, b)
	if hash(b, a) != same || hash(Node{"a", "x:9", 0}, b) != same {
		t.Error("the hash depends on the order, or on addresses")
	}
	for _, other := range []string{hash(a), hash(a, Node{"c", "h:2", 1}), hash(a, Node{"b", "h:2", 2}), hash(a, Node{"b1", "", 1})} {
		if other == same {
			t.Error("another roster has the same hash")
		}
	}
}

func resolved(t *testing.T, text string, o Options) string {
	t.Helper()
	r, err := Resolve(t.Context(), text, o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range r.Nodes() {
		names = append(names, n.Name+"="+n.Address)
	}
	return strings.Join(names, " ")
}

func TestResolve(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	if err := os.WriteFile(file, []byte("# rack 1\nn2 # the second\nn1:7\n\nm[1-2],m3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SLURM_JOB_NODELIST": "gpu[08-10]"}
	o := Options{Port: 7440, Getenv: func(name string) string { return env[name] }}
	for text, want := range map[string]string{
		" b,a ":        "a=a:7440 b=b:7440",
		"file:" + file: "m1=m1:7440 m2=m2:7440 m3=m3:7440 n1=n1:7 n2=n2:7440",
		"slurm":        "gpu08=gpu08:7440 gpu09=gpu09:7440 gpu10=gpu10:7440",
	} {
		if got := resolved(t, text, o); got != want {
			t.Errorf("Resolve(%q) = %s, want %s", text, got, want)
		}
	}
	clear(env)
	if _, err := Resolve(t.Context(), "slurm", o); err == nil || !strings.Contains(err.Error(), "srun") {
		t.Errorf("outside of a job: got error %v", err)
	}
	env["SLURM_JOB_NODELIST"] = "a[1-"
	if _, err := Resolve(t.Context(), "slurm", o); err == nil || !strings.Contains(err.Error(), "SLURM_JOB_NODELIST: ") {
		t.Errorf("got error %v", err)
	}
	if _, err := Resolve(t.Context(), "file:"+file+"x", o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got error %v", err)
	}
}

func TestCheckSpec(t *testing.T) {
	for _, text := range []string{"slurm", "dns:milkweed.jobs.svc", "dns:milkweed:7", "file:/does/not/exist", "a,b", "n[1-3]"} {
		if err := CheckSpec(text); err != nil {
			t.Errorf("CheckSpec(%q): %v", text, err)
		}
	}
	for _, text := range []string{"", "file:", "dns:", "dns:a,b", "a,a", "n[1-", "etcd://x"} {
		if CheckSpec(text) == nil {
			t.Errorf("CheckSpec(%q) has no error", text)
		}
	}
}

// Resolve waits until all nodes have an address, and accepts failures of the server.
func TestDNS(t *testing.T) {
	answers := [][]string{nil, {"10.0.0.2"}, nil, {"10.0.0.2", "10.0.0.1", "fd00::1", "::ffff:10.0.0.1"}, {"10.0.0.2", "10.0.0.3", "10.0.0.1"}, {"10.0.0.9"}}
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		o := Options{Port: 7440, Min: 3, Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "milkweed.jobs.svc" {
				t.Errorf("asked for %s", host)
			}
			var addrs []netip.Addr
			for _, a := range answers[requests] {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			requests++
			if addrs == nil {
				return nil, &net.DNSError{Err: "server misbehaving"}
			}
			return addrs, nil
		}}
		var causes []string
		o.Waiting = func(cause error) { causes = append(causes, cause.Error()) }
		got := resolved(t, "dns:milkweed.jobs.svc", o)
		if len(causes) != 4 || causes[1] != "dns: milkweed.jobs.svc has 1 of 3 addresses" || !strings.Contains(causes[2], "has 0 of 3 addresses: lookup : server misbehaving") {
			t.Errorf("waited for %q", causes)
		}
		if want := "10.0.0.1=10.0.0.1:7440 10.0.0.2=10.0.0.2:7440 10.0.0.3=10.0.0.3:7440"; got != want || requests != 5 {
			t.Errorf("got %s after %d requests", got, requests)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		o := Options{Port: 1, Lookup: func(context.Context, string) ([]netip.Addr, error) {
			requests++
			return []netip.Addr{netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1")}, nil
		}}
		if got, want := resolved(t, "dns:x:7", o), "fd00::1=[fd00::1]:7 fd00::2=[fd00::2]:7"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		requests, o.Min = 0, 3
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := Resolve(ctx, "dns:x", o)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has 2 of 3 addresses") {
			t.Errorf("got error %v", err)
		}
		if requests < 12 || requests > 40 { // 4 to start with, then one each 2.5 s to 5 s
			t.Errorf("made %d requests in a minute", requests)
		}
	})
}

func TestFind(t *testing.T) {
	addrs := func(texts ...string) (a []netip.Addr) {
		for _, text := range texts {
			a = append(a, netip.MustParseAddr(text))
		}
		return a
	}
	for _, c := range []struct {
		name   string
		roster string
		id     Identity
		want   string // the node, or several words of the error
	}{
		{"explicit", "a,b", Identity{Name: "b", Hosts: []string{"a"}}, "b"},
		{"explicit, of an address", "a=10.0.0.1,b=10.0.0.2", Identity{Name: "b"}, "b"},
		{"explicit only", "a,b", Identity{Name: "c", Hosts: []string{"a"}, Addrs: addrs("10.0.0.1")}, "peers.name is c, and the roster has a, b"},
		{"host", "node1,node2", Identity{Hosts: []string{"node2"}}, "node2"},
		{"case", "Node1,Node2", Identity{Hosts: []string{"node2"}}, "Node2"},
		{"host of a named node", "x=node1,y=node2", Identity{Hosts: []string{"node2"}}, "y"},
		{"first host first", "gpu1,gpu2", Identity{Hosts: []string{"gpu2", "login"}}, "gpu2"},
		{"short in the roster", "node1,node2", Identity{Hosts: []string{"node2.cluster.org"}}, "node2"},
		{"short here", "node1.c.org,node2.c.org", Identity{Hosts: []string{"node2"}}, "node2.c.org"},
		{"other domain", "node1.a", Identity{Hosts: []string{"node1.b"}}, "is not in the roster"},
		{"ambiguous", "node1.a,node1.b", Identity{Hosts: []string{"node1"}}, "may be node1.a or node1.b"},
		{"exact before short", "node1.a,node1", Identity{Hosts: []string{"node1"}}, "node1"},
		{"address", "10.0.0.1,10.0.0.2", Identity{Hosts: []string{"x"}, Addrs: addrs("127.0.0.1", "10.0.0.2")}, "10.0.0.2"},
		{"IPv6", "fd00::1,fd00::2", Identity{Addrs: addrs("fd00::2")}, "fd00::2"},
		{"short of an address", "10.0.0.1", Identity{Hosts: []string{"10"}}, "is not in the roster"},
		{"port", "127.0.0.1:1,127.0.0.1:2", Identity{Addrs: addrs("127.0.0.1"), Port: 2}, "127.0.0.1:2"},
		{"unknown port", "h:1,h:2", Identity{Hosts: []string{"h"}}, "may be h:1 or h:2 of the roster: set peers.name"},
		{"other port of one node", "h:1", Identity{Hosts: []string{"h"}, Port: 9}, "h"},
		{"not found", "a[01-12]", Identity{Hosts: []string{"b", "c"}, Addrs: addrs("10.0.0.1")},
			"which has a01, a02, a03, a04, a05, a06, a07, a08 and 4 others: it has the host names b, c and the addresses 10.0.0.1: set peers.name"},
	} {
		nodes, err := Parse(c.roster, 7440)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(nodes)
		if err != nil {
			t.Fatal(err)
		}
		i, err := r.Find(c.id)
		if err != nil {
			if !strings.Contains(c.want, " ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got error %v, want %s", c.name, err, c.want)
			}
		} else if r.Nodes()[i].Name != c.want {
			t.Errorf("%s: got %s, want %s", c.name, r.Nodes()[i].Name, c.want)
		}
	}
}

// This process finds itself by its host name and by its addresses.
func TestThis(t *testing.T) {
	t.Setenv("SLURMD_NODENAME", "gpu7")
	id := This("", ":7441")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(id.Hosts, []string{"gpu7", host}) || id.Port != 7441 || !slices.Contains(id.Addrs, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("got %+v", id)
	}
	id = This("x", "10.1.2.3:5")
	if id.Name != "x" || id.Port != 5 || !slices.Equal(id.Addrs, []netip.Addr{netip.MustParseAddr("10.1.2.3")}) {
		t.Errorf("got %+v", id)
	}
}
