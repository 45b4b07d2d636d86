package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/peer"
)

// A PeerGroup is the nodes that share their tiers, as this node sees them.
type PeerGroup struct {
	This    peer.Info // what this node says about itself
	Nodes   int       // of the group
	Number  int       // of the group, from 1
	Groups  int       // into which the roster is divided
	Listen  string    // the address of this node; "" if it serves nobody
	Secret  bool      // whether there is one
	Answers []PeerAnswer
}

// A PeerAnswer is what a node of the roster has answered.
type PeerAnswer struct {
	Name, Address string
	Info          peer.Info
	Ahead         time.Duration // by which its clock is ahead of that of this node
	Err           error         // why there is no Info
}

// maxClockSkew is the largest difference of clocks that check accepts. Nodes refuse requests from
// 20 s on.
const maxClockSkew = 5 * time.Second

// A fault is why a node and this one do not share their tiers.
type fault struct {
	detail string
	remedy string
	status Status
}

// Peers returns the findings about the peers: one for each kind of fault, and one about all of them.
func Peers(g PeerGroup) []Finding { return thisHost().peers(g) }

func (h host) peers(g PeerGroup) []Finding {
	const name = "peers"
	findings := h.peerAddress(g)
	faults := make(map[fault][]string) // names of nodes
	var order []fault
	good, asked := 0, 0
	for _, a := range g.Answers {
		if a.Name == g.This.Name {
			continue
		}
		asked++
		f := faultOf(g.This, a)
		if f == (fault{}) {
			good++
			continue
		}
		if faults[f] == nil {
			order = append(order, f)
		}
		faults[f] = append(faults[f], a.Name)
	}
	for _, f := range order {
		detail := fmt.Sprintf("%s: %s", SomeNames(faults[f]), f.detail)
		if f.status == Warning {
			findings = append(findings, warning(name, f.remedy, "%s", detail)...)
		} else {
			findings = append(findings, problem(exit.Peers, name, f.remedy, "%s", detail)...)
		}
	}
	self := "this node is not one of them"
	if g.This.Name != "" {
		self = "this node is " + g.This.Name
	}
	group := ""
	if g.Groups > 1 {
		group = fmt.Sprintf("group %d of %d, ", g.Number, g.Groups)
	}
	return append(findings, ok(name, "%s%d nodes in the roster %.12s, %s; %d of %d others that were asked are mounted and agree",
		group, g.Nodes, g.This.Roster, self, good, asked)...)
}

// peerAddress checks the address on which this node is to serve others. A mount of this node may
// have it already.
func (h host) peerAddress(g PeerGroup) []Finding {
	mounted := slices.ContainsFunc(g.Answers, func(a PeerAnswer) bool { return a.Name == g.This.Name && a.Info.Name == a.Name })
	if g.Listen == "" || mounted {
		return nil
	}
	if a, err := net.ResolveTCPAddr("tcp", g.Listen); err == nil && !g.Secret && !a.IP.IsLoopback() {
		return problem(exit.Peers, "peers", config.SecretRemedy, "other machines can reach %s, and there is no secret", g.Listen)
	}
	if err := h.listen(g.Listen); err != nil {
		return problem(exit.Peers, "peers", "Choose another port for all nodes of this job, such as -o peers_listen=:7450.",
			"cannot listen on %s: %w", g.Listen, reason(err))
	}
	return nil
}

// PeersError returns the finding for an error with which no peers can be had.
func PeersError(err error) []Finding {
	e, isUserError := errors.AsType[*exit.Error](err)
	if !isUserError {
		e = &exit.Error{Code: exit.Peers, Err: err, Remedy: "Correct the table [peers]."}
	}
	return problem(e.Code, "peers", e.Remedy, "%s", strings.TrimPrefix(e.Err.Error(), "peers: "))
}

// PeerProblem returns why a node and this one do not share their tiers, and what to do about it. Both
// are "" if they do.
func PeerProblem(this peer.Info, a PeerAnswer) (problem, remedy string) {
	f := faultOf(this, a)
	return f.detail, f.remedy
}

// faultOf returns why a node and this one do not share their tiers. It is the zero value if they do.
func faultOf(this peer.Info, a PeerAnswer) fault {
	switch i := a.Info; {
	case a.Err != nil:
		return unanswered(a)
	case i.Name != a.Name:
		return fault{fmt.Sprintf("at its address, %s, is the node %q", a.Address, i.Name), "Correct the address in the roster, or peers.name on that node.", Problem}
	case i.Dataset != this.Dataset:
		return fault{fmt.Sprintf("it serves the dataset %q, and this node is to mount %q", i.Dataset, this.Dataset),
			"Mount the same SOURCE, by the same path, on all nodes. Jobs with different datasets need different ports: set peers.listen.", Problem}
	case i.Roster != this.Roster:
		return fault{fmt.Sprintf("its roster has the hash %.12s, and that of this node %.12s", i.Roster, this.Roster),
			"Give all nodes the same roster: the same names and weights, with peers.group in the same order, and the same peers.group.", Problem}
	case a.Ahead.Abs() > maxClockSkew:
		return fault{"its clock differs by more than " + maxClockSkew.String(), "Synchronize the clocks, such as with chrony.", Warning}
	}
	return fault{}
}

// unanswered returns the fault of a node that has not answered.
func unanswered(a PeerAnswer) fault {
	switch cause := peer.Cause(a.Err); {
	case errors.Is(a.Err, unix.ECONNREFUSED):
		return fault{"no mount serves its port", "Mount there, with the same roster. Before the first mount of a job this is as it should be.", Warning}
	case cause == "protocol":
		return fault{"it has another version of the protocol", "Run the same release of Milkweed on all nodes.", Problem}
	case errors.Is(a.Err, peer.ErrPlain):
		return fault{peer.ErrPlain.Error(), tlsRemedy, Problem}
	case errors.Is(a.Err, peer.ErrTLS):
		return fault{peer.ErrTLS.Error(), tlsRemedy, Problem}
	case cause == "tls":
		return fault{"its certificate or that of this node is refused: " + rootOf(a.Err),
			"Give each node a certificate for its name or address in the roster, and all nodes the same authorities in peers.tls_ca.", Problem}
	case cause == "refused" || cause == "unproven":
		text := a.Err.Error()
		if strings.Contains(text, "clock") {
			return fault{"it refuses requests, because the clocks differ", "Synchronize the clocks, such as with chrony.", Problem}
		}
		return fault{"its secret differs from that of this node", "Give all nodes the same peers.secret_file.", Problem}
	case cause == "unreachable" || cause == "stuck" || cause == "broken":
		return fault{"it cannot be reached: " + rootOf(a.Err), "Check that the roster has its address, that it is up, and that no firewall blocks the port.", Warning}
	}
	return fault{rootOf(a.Err), "The log of its daemon may say more.", Warning}
}

const tlsRemedy = "Set peers.tls_cert, peers.tls_key and peers.tls_ca on all nodes, or on none."

// rootOf returns the innermost text of an error, which is the same for all nodes with that error.
func rootOf(err error) string {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "it does not answer in time"
	}
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

// SomeNames lists names, at most four of them.
func SomeNames(names []string) string {
	const most = 4
	if len(names) > most {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
