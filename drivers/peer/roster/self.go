package roster

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// An Identity is what a node knows about itself before it has found itself in a roster.
type Identity struct {
	Name  string       // given by the user; the others do not count then
	Hosts []string     // names of the host, the best first
	Addrs []netip.Addr // addresses of the host
	Port  int          // on which it listens; 0: unknown
}

// This returns the identity of this process. name is what the user calls the node; it may be
// empty. listen is the address that the node listens on, such as :7440 or 10.0.0.1:7440, or empty.
func This(name, listen string) Identity {
	id := Identity{Name: name}
	id.Hosts = append(id.Hosts, os.Getenv("SLURMD_NODENAME"))
	if host, err := os.Hostname(); err == nil {
		id.Hosts = append(id.Hosts, host)
	}
	id.Hosts = slices.DeleteFunc(slices.Compact(id.Hosts), func(s string) bool { return s == "" })
	host, port, err := net.SplitHostPort(listen)
	if err == nil {
		id.Port, _ = strconv.Atoi(port)
	}
	if a, err := netip.ParseAddr(host); err == nil && !a.IsUnspecified() {
		id.Addrs = []netip.Addr{a.Unmap()}
		return id
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			id.Addrs = append(id.Addrs, p.Addr().Unmap())
		}
	}
	return id
}

// Find returns the index in Nodes of the node that id describes. It tries, in this order, the name
// that the user gave and nothing else, the host names, the host names without or with a domain, and
// the addresses. If several nodes of one host match, the port decides.
func (r *Roster) Find(id Identity) (int, error) {
	hosts := id.Hosts
	if id.Name != "" {
		hosts, id.Addrs = []string{id.Name}, nil
	}
	attempts := []func(name string) bool{
		func(name string) bool { return slices.ContainsFunc(hosts, equalTo(name)) },
		func(name string) bool { return slices.ContainsFunc(hosts, sameHost(name)) },
		func(name string) bool {
			a, err := netip.ParseAddr(name)
			return err == nil && slices.Contains(id.Addrs, a.Unmap())
		},
	}
	for _, matches := range attempts {
		found := r.with(matches, id.Port)
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return 0, fmt.Errorf("this node may be %s or %s of the roster: set peers.name", r.nodes[found[0]].Name, r.nodes[found[1]].Name)
		}
	}
	return 0, r.notFound(id)
}

// notFound returns the error for a node that is not in the roster.
func (r *Roster) notFound(id Identity) error {
	var names, addrs []string
	for _, n := range r.nodes {
		names = append(names, n.Name)
	}
	if id.Name != "" {
		return fmt.Errorf("peers.name is %s, and the roster has %s", id.Name, list(names))
	}
	for _, a := range id.Addrs {
		addrs = append(addrs, a.String())
	}
	return fmt.Errorf("this node is not in the roster, which has %s: it has the host names %s and the addresses %s: set peers.name", list(names), list(id.Hosts), list(addrs))
}

// list returns names as text, at most eight of them.
func list(names []string) string {
	const most = 8
	switch {
	case len(names) == 0:
		return "(none)"
	case len(names) > most:
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// with returns the nodes whose name, or the host of whose address, matches. If there are several
// and port is not 0, it returns those that have this port.
func (r *Roster) with(matches func(name string) bool, port int) []int {
	var all, same []int
	for i, n := range r.nodes {
		host, p, _ := net.SplitHostPort(n.Address)
		if !matches(n.Name) && !matches(host) {
			continue
		}
		all = append(all, i)
		if p == strconv.Itoa(port) {
			same = append(same, i)
		}
	}
	if len(all) > 1 && port != 0 {
		return same
	}
	return all
}

func equalTo(name string) func(string) bool {
	return func(host string) bool { return strings.EqualFold(host, name) }
}

// sameHost returns a function that reports whether a host has this name, if one of the two has no
// domain.
func sameHost(name string) func(string) bool {
	short, domain, _ := strings.Cut(name, ".")
	if _, err := netip.ParseAddr(name); err == nil {
		short, domain = name, ""
	}
	return func(host string) bool {
		s, d, _ := strings.Cut(host, ".")
		return strings.EqualFold(s, short) && (d == "" || domain == "")
	}
}
