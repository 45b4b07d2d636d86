package roster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are what Resolve needs besides the text of a roster.
type Options struct {
	Port int // of nodes whose entry has none
	Min  int // dns: the number of nodes to wait for, at least 1

	Waiting func(cause error) // dns: called after each request that did not bring Min addresses; may be nil

	Getenv func(name string) string                                     // nil: os.Getenv
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error) // nil: net.DefaultResolver
}

// Resolve returns the roster that text describes:
//
//   - a list, see Parse
//   - file:PATH, a file of such lists, in which # begins a comment
//   - slurm, the nodes of the Slurm job that the process belongs to
//   - dns:NAME[:PORT], the addresses of NAME, such as those of a headless Service. Resolve asks
//     until there are at least Options.Min, or until ctx is done. If there are IPv4 addresses, the
//     others do not count, because a node may have one of each. The name of a node is its address.
//
// The result never changes. Nodes agree about files only if all of them get the same roster: with
// dns, Options.Min should be the number of nodes, and NAME should have all of their addresses
// before they are ready (publishNotReadyAddresses).
func Resolve(ctx context.Context, text string, o Options) (*Roster, error) {
	nodes, err := resolve(ctx, text, o)
	if err != nil {
		return nil, err
	}
	return New(nodes)
}

// CheckSpec returns an error if Resolve fails for text whatever the environment is. It reads
// nothing.
func CheckSpec(text string) error {
	if path, ok := strings.CutPrefix(strings.TrimSpace(text), "file:"); ok {
		if path == "" {
			return errors.New("file: has no path")
		}
		return nil
	}
	_, err := Resolve(context.Background(), text, Options{
		Port:   1,
		Getenv: func(string) string { return "node" },
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.IPv6Loopback()}, nil
		},
	})
	return err
}

func resolve(ctx context.Context, text string, o Options) ([]Node, error) {
	text = strings.TrimSpace(text)
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		return readFile(path, o.Port)
	}
	if host, ok := strings.CutPrefix(text, "dns:"); ok {
		return lookup(ctx, host, o)
	}
	if text == "slurm" {
		return fromSlurm(o)
	}
	return Parse(text, o.Port)
}

// maxFile is the largest size of a file with a roster.
const maxFile = 32 << 20

func readFile(path string, port int) ([]Node, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	var list strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		list.WriteString(line + "\n")
	}
	nodes, err := Parse(list.String(), port)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return nodes, nil
}

func fromSlurm(o Options) ([]Node, error) {
	const variable = "SLURM_JOB_NODELIST"
	list := o.getenv(variable)
	if list == "" {
		return nil, fmt.Errorf("%s is not set, so that this is no Slurm job: start the program with srun or sbatch, or give the nodes as a list", variable)
	}
	names, err := Hostlist(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	nodes := make([]Node, len(names))
	for i, name := range names {
		nodes[i] = Node{Name: name, Address: net.JoinHostPort(name, strconv.Itoa(o.Port))}
	}
	return nodes, nil
}

func (o Options) getenv(name string) string {
	if o.Getenv != nil {
		return o.Getenv(name)
	}
	return os.Getenv(name)
}

const (
	lookupTimeout = 5 * time.Second        // of one request
	firstPause    = 250 * time.Millisecond // between requests; it doubles
	maxPause      = 5 * time.Second
)

// lookup returns the nodes that DNS has for HOST[:PORT], as soon as there are o.Min.
func lookup(ctx context.Context, text string, o Options) ([]Node, error) {
	hosts, port, err := parseHosts(text, o.Port)
	if err != nil || len(hosts) != 1 {
		return nil, fmt.Errorf("dns:%s is not dns:NAME or dns:NAME:PORT", text)
	}
	host, want := hosts[0], max(o.Min, 1)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		addrs, err := o.lookup(ctx, host)
		if len(addrs) >= want {
			return nodesAt(addrs, port), nil
		}
		cause := fmt.Errorf("dns: %s has %d of %d addresses", host, len(addrs), want)
		if err != nil {
			cause = fmt.Errorf("%w: %w", cause, err)
		}
		if o.Waiting != nil {
			o.Waiting(cause)
		}
		// All nodes of a job start at the same time; the server should not get their requests so.
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w", cause, ctx.Err())
		}
	}
}

// lookup returns the addresses of host, sorted: those for IPv4 if there are any.
func (o Options) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	resolve := o.Lookup
	if resolve == nil {
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := resolve(ctx, host)
	var v4, v6 []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	if len(v4) == 0 {
		v4 = v6
	}
	slices.SortFunc(v4, netip.Addr.Compare)
	return slices.Compact(v4), err
}

func nodesAt(addrs []netip.Addr, port int) []Node {
	nodes := make([]Node, len(addrs))
	for i, a := range addrs {
		nodes[i] = Node{Name: a.String(), Address: net.JoinHostPort(a.String(), strconv.Itoa(port))}
	}
	return nodes
}
