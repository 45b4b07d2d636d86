package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/peer"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// noFiles are the files of a node that has none.
type noFiles struct{}

func (noFiles) OpenShared(context.Context, string, drivers.Info, int) (drivers.Object, error) {
	return nil, drivers.ErrFull
}

// A node of a test is made by a configuration, and listens on an address.
func startNode(t *testing.T, names string, address string, change func(*peer.Config)) {
	t.Helper()
	nodes, err := roster.Parse(names, 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := roster.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	c := peer.Config{Roster: r, Dataset: "d", Log: slog.New(slog.DiscardHandler)}
	change(&c)
	n, err := peer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if address == "" {
		return
	}
	s, err := n.Listen(address, noFiles{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
}

// reserve returns n loopback addresses that no program uses.
func reserve(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

// Each fault of a node is named, with a remedy.
func TestPeerFaults(t *testing.T) {
	secret := func() *peer.Secret {
		s, err := peer.ParseSecret(peer.NewSecret())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ours := secret()
	at := reserve(t, 8)
	var list []string
	for i, name := range []string{"self", "good", "secret", "roster", "dataset", "name", "protocol", "absent"} {
		list = append(list, name+"="+at[i])
	}
	names := strings.Join(list, ",")
	start := func(i int, names string, change func(*peer.Config)) {
		startNode(t, names, at[i], func(c *peer.Config) {
			c.Self, c.Secret = strings.Split(list[i], "=")[0], ours
			change(c)
		})
	}
	start(1, names, func(*peer.Config) {})
	start(2, names, func(c *peer.Config) { c.Secret = secret() })
	start(3, strings.Join(list[:7], ","), func(*peer.Config) {})
	start(4, names, func(c *peer.Config) { c.Dataset = "other" })
	start(5, names, func(c *peer.Config) { c.Self = "good" })
	stranger := &http.Server{Addr: at[6], Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Milkweed-Protocol", "99")
		w.WriteHeader(http.StatusUpgradeRequired)
		io.WriteString(w, "too old")
	})}
	l, err := net.Listen("tcp", at[6])
	if err != nil {
		t.Fatal(err)
	}
	go stranger.Serve(l)
	t.Cleanup(func() { stranger.Close() })

	nodes, err := roster.Parse(names, 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := roster.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	n, err := peer.New(peer.Config{Roster: r, Self: "self", Dataset: "d", Secret: ours, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	g := PeerGroup{This: n.Info(), Nodes: r.Len(), Listen: at[0], Secret: true}
	for _, node := range r.Nodes() {
		info, err := n.Ask(t.Context(), node.Name)
		g.Answers = append(g.Answers, PeerAnswer{Name: node.Name, Address: node.Address, Info: info, Err: err})
	}
	findings := Peers(g)
	for _, want := range []struct {
		status Status
		text   string
	}{
		{Problem, "secret: its secret differs"},
		{Problem, "roster: its roster has the hash"},
		{Problem, `dataset: it serves the dataset "other"`},
		{Problem, `name: at its address, ` + at[5] + `, is the node "good"`},
		{Problem, "protocol: it has another version of the protocol"},
		{Warning, "absent: no mount serves its port"},
		{OK, "8 nodes in the roster " + r.Hash()[:12] + ", this node is self; 1 of 7 others that were asked are mounted and agree"},
	} {
		found := false
		for _, f := range findings {
			if strings.HasPrefix(f.Detail, want.text) {
				found = f.Status == want.status && (f.Remedy != "") == (want.status != OK)
			}
		}
		if !found {
			t.Errorf("no %s %q in %+v", want.status, want.text, findings)
		}
	}
	if len(findings) != 7 {
		t.Errorf("%d findings: %+v", len(findings), findings)
	}
}

// A node with TLS and one without have a finding of their own.
func TestPeersWithAndWithoutTLS(t *testing.T) {
	for _, err := range []error{peer.ErrPlain, peer.ErrTLS} {
		f := faultOf(peer.Info{Name: "a"}, PeerAnswer{Name: "b", Err: fmt.Errorf("peer b: %w", err)})
		if f.status != Problem || f.detail != err.Error() || !strings.Contains(f.remedy, "on all nodes, or on none") {
			t.Errorf("%v: %+v", err, f)
		}
	}
}

// The finding about all nodes names the group.
func TestPeerGroupIsNamed(t *testing.T) {
	g := PeerGroup{This: peer.Info{Name: "a", Roster: "r"}, Nodes: 32, Number: 2, Groups: 4}
	findings := Peers(g)
	if want := "group 2 of 4, 32 nodes in the roster r, this node is a; "; len(findings) != 1 || !strings.HasPrefix(findings[0].Detail, want) {
		t.Errorf("got %+v, want %q", findings, want)
	}
}

// The clocks of nodes must agree, and nodes with the same fault have one finding.
func TestPeerClocks(t *testing.T) {
	this := peer.Info{Name: "a", Dataset: "d", Roster: "r"}
	g := PeerGroup{This: this, Nodes: 7}
	for _, name := range []string{"b", "c", "d", "e", "f"} {
		info := this
		info.Name = name
		g.Answers = append(g.Answers, PeerAnswer{Name: name, Info: info, Ahead: -10 * time.Second})
	}
	findings := Peers(g)
	if len(findings) != 2 || findings[0].Status != Warning || findings[0].Detail != "b, c, d, e and 1 others: its clock differs by more than 5s" {
		t.Errorf("got %+v", findings)
	}
}

// A port that another program has is a problem, unless it is a mount of this node.
func TestPeerAddressInUse(t *testing.T) {
	h := thisHost()
	h.listen = func(string) error { return &net.OpError{Op: "listen", Err: unix.EADDRINUSE} }
	this := peer.Info{Name: "a"}
	findings := h.peers(PeerGroup{This: this, Nodes: 1, Listen: ":7440", Secret: true})
	if findings[0].Status != Problem || findings[0].Detail != "cannot listen on :7440: address already in use" {
		t.Errorf("got %+v", findings)
	}
	findings = h.peers(PeerGroup{This: this, Nodes: 1, Listen: ":7440", Secret: true, Answers: []PeerAnswer{{Name: "a", Info: this}}})
	if len(findings) != 1 || findings[0].Status != OK {
		t.Errorf("of a mounted node: %+v", findings)
	}
	for text, err := range map[string]error{
		"connection timed out":       fmt.Errorf("dial: %w", unix.ETIMEDOUT),
		"no such host":               errors.New("dial: lookup z: no such host"),
		"it does not answer in time": fmt.Errorf("dial: %w", context.DeadlineExceeded),
	} {
		if f := faultOf(this, PeerAnswer{Name: "b", Err: err}); f.status != Warning || f.remedy == "" || f.detail != text {
			t.Errorf("%v: %+v", err, f)
		}
	}
}

// Without a secret, an address that others can reach is a problem, as it is to mount.
func TestPeersWithoutSecret(t *testing.T) {
	h := thisHost()
	h.listen = func(string) error { return nil }
	for address, want := range map[string]Status{":7440": Problem, "192.0.2.1:7440": Problem, "127.0.0.1:7440": OK} {
		findings := h.peers(PeerGroup{This: peer.Info{Name: "a"}, Nodes: 1, Listen: address})
		if got := findings[0]; got.Status != want || want == Problem && !strings.Contains(got.Remedy, "keygen") {
			t.Errorf("%s: %+v", address, got)
		}
	}
}
