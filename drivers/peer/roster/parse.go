package roster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Parse returns the nodes of a list such as
//
//	node1, node2:7000, node[03-10]*2, [fd00::1]:7001, node11=10.0.0.11
//
// Items are separated by commas or white space. An item is [NAME=]HOST[:PORT][*WEIGHT]. HOST is an
// address or a name, which may have ranges as in Hostlist; NAME then has as many. port is the port
// of nodes that give none. The name of a node is NAME, else HOST, or HOST:PORT if HOST is in the
// list more than once without a NAME.
func Parse(text string, port int) ([]Node, error) {
	items, err := split(text)
	if err != nil {
		return nil, err
	}
	var list []entry
	uses := make(map[string]int) // of each host that has no name
	for _, item := range items {
		nodes, err := parseItem(item, port)
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", item, err)
		}
		if list = append(list, nodes...); len(list) > MaxNodes {
			return nil, errTooMany
		}
		for _, n := range nodes {
			if n.name == "" {
				uses[n.host]++
			}
		}
	}
	nodes := make([]Node, len(list))
	for i, e := range list {
		nodes[i] = Node{Name: e.name, Address: net.JoinHostPort(e.host, strconv.Itoa(e.port)), Weight: e.weight}
		if e.name == "" {
			nodes[i].Name = e.host
			if uses[e.host] > 1 {
				nodes[i].Name = nodes[i].Address
			}
		}
	}
	return nodes, nil
}

// An entry is a node of a list, whose name is empty if the list gives none.
type entry struct {
	name, host string
	port       int
	weight     int64
}

func parseItem(item string, port int) ([]entry, error) {
	weight := int64(1)
	if rest, text, ok := strings.Cut(item, "*"); ok {
		w, err := strconv.ParseInt(text, 10, 64)
		if err != nil || w < 1 {
			return nil, fmt.Errorf("the weight %q is not a positive number", text)
		}
		item, weight = rest, w
	}
	name, item, named := cutName(item)
	hosts, port, err := parseHosts(item, port)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(hosts))
	if named {
		if names, err = Hostlist(name); err != nil {
			return nil, err
		}
		if len(names) != len(hosts) {
			return nil, fmt.Errorf("%d names for %d hosts", len(names), len(hosts))
		}
	}
	entries := make([]entry, len(hosts))
	for i, host := range hosts {
		entries[i] = entry{names[i], host, port, weight}
	}
	return entries, nil
}

// cutName splits [NAME=]HOST.
func cutName(item string) (name, host string, named bool) {
	if name, host, named = strings.Cut(item, "="); named {
		return name, host, true
	}
	return "", item, false
}

// parseHosts returns the hosts of HOST[:PORT], and their port.
func parseHosts(text string, port int) ([]string, int, error) {
	if a, ok := parseAddr(text); ok {
		return []string{a}, port, nil
	}
	host := text
	if i := strings.LastIndexByte(text, ':'); i > strings.LastIndexByte(text, ']') {
		p, err := strconv.ParseUint(text[i+1:], 10, 16)
		if err != nil || p == 0 {
			return nil, 0, fmt.Errorf("%q is not a port", text[i+1:])
		}
		host, port = text[:i], int(p)
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if a, ok := parseAddr(strings.TrimSuffix(inner, "]")); ok {
			return []string{a}, port, nil
		}
	}
	hosts, err := Hostlist(host)
	return hosts, port, err
}

// parseAddr returns the normal form of an address. One with a zone is valid on one node only.
func parseAddr(text string) (string, bool) {
	a, err := netip.ParseAddr(text)
	return a.String(), err == nil && a.Zone() == ""
}

// maxName is the largest length of a name, in bytes.
const maxName = 255

// Hostlist returns the names of a list in the syntax of Slurm, such as
//
//	login,gpu[01-03,7]rack[1-2]-ib
//
// which is login, gpu01rack1-ib, gpu01rack2-ib, gpu02rack1-ib and so on: a name may have any number
// of groups of numbers and ranges, and the last one varies fastest. The first number of a range
// determines its leading zeros. There is at least one name and at most MaxNodes. They consist of
// ASCII letters, digits, and the characters -_. only.
func Hostlist(text string) ([]string, error) {
	items, err := split(text)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, item := range items {
		more, err := expand(item)
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", item, err)
		}
		if names = append(names, more...); len(names) > MaxNodes {
			return nil, errTooMany
		}
	}
	return names, nil
}

// split returns the items of a list, which are separated by commas and white space outside of
// brackets. There is at least one.
func split(text string) ([]string, error) {
	var items []string
	start, inside := 0, false
	end := func(i int) {
		if start < i {
			items = append(items, text[start:i])
		}
		start = i + 1
	}
	for i := range len(text) {
		switch c := text[i]; {
		case c == '[' && inside:
			return nil, errors.New("a [ follows another without a ] between them")
		case c == ']' && !inside:
			return nil, errors.New("there is a ] without a [")
		case c == '[' || c == ']':
			inside = c == '['
		case !inside && strings.IndexByte(", \t\r\n", c) >= 0:
			end(i)
		}
	}
	if end(len(text)); inside {
		return nil, errors.New("there is a [ without a ]")
	}
	if len(items) == 0 {
		return nil, errors.New("the list is empty")
	}
	return items, nil
}

// expand returns the names of an item of a hostlist, whose brackets match.
func expand(item string) ([]string, error) {
	names := []string{""}
	for item != "" {
		literal, rest, group := strings.Cut(item, "[")
		tails := []string{literal}
		if group {
			var list string
			list, item, _ = strings.Cut(rest, "]")
			numbers, err := expandRanges(list)
			if err != nil {
				return nil, err
			}
			for i, n := range numbers {
				numbers[i] = literal + n
			}
			tails = numbers
		} else {
			item = ""
		}
		if len(names)*len(tails) > MaxNodes {
			return nil, errTooMany
		}
		if len(names[0])+len(literal) > maxName {
			return nil, errTooLong
		}
		product := make([]string, 0, len(names)*len(tails))
		for _, head := range names {
			for _, tail := range tails {
				product = append(product, head+tail)
			}
		}
		names = product
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

var errTooLong = fmt.Errorf("a name has more than %d bytes", maxName)

func checkName(name string) error {
	if len(name) > maxName {
		return errTooLong
	}
	for i := range len(name) {
		c := name[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("-_.", c) < 0 {
			return fmt.Errorf("a name contains %q", c)
		}
	}
	return nil
}

// expandRanges returns the numbers of a list such as 01-03,7.
func expandRanges(list string) ([]string, error) {
	var numbers []string
	for r := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(r, "-")
		if !isRange {
			last = first
		}
		lo, err := parseNumber(first)
		if err != nil {
			return nil, err
		}
		hi, err := parseNumber(last)
		if err != nil {
			return nil, err
		}
		if lo > hi {
			return nil, fmt.Errorf("the range %s ends before it begins", r)
		}
		if len(numbers)+hi-lo >= MaxNodes {
			return nil, errTooMany
		}
		for n := lo; n <= hi; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return numbers, nil
}

// parseNumber parses at most 9 digits.
func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || len(text) > 9 {
		return 0, fmt.Errorf("%.20q is not a number of at most 9 digits", text)
	}
	return int(n), nil
}
