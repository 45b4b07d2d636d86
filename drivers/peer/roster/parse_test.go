package roster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestHostlist(t *testing.T) {
	for text, want := range map[string]string{
		"node1":                     "node1",
		"a,b c\n,,d,":               "a b c d",
		"n[1-3]":                    "n1 n2 n3",
		"n[01-03,7]":                "n01 n02 n03 n7",
		"n[08-11]":                  "n08 n09 n10 n11",
		"n[8-11]":                   "n8 n9 n10 n11",
		"n[001-010,100]":            "n001 n002 n003 n004 n005 n006 n007 n008 n009 n010 n100",
		"n[5]":                      "n5",
		"n[3-3]":                    "n3",
		"a[01-03,7]b[1-2],c":        "a01b1 a01b2 a02b1 a02b2 a03b1 a03b2 a7b1 a7b2 c",
		"rack[0-1]node[1-2]-ib.x":   "rack0node1-ib.x rack0node2-ib.x rack1node1-ib.x rack1node2-ib.x",
		"r[1-2]b[3-4]n[5-6]":        "r1b3n5 r1b3n6 r1b4n5 r1b4n6 r2b3n5 r2b3n6 r2b4n5 r2b4n6",
		"[1-2]x":                    "1x 2x",
		"a[1-2][3-4]":               "a13 a14 a23 a24",
		"tux[0-1],tux[10-11],login": "tux0 tux1 tux10 tux11 login",
	} {
		got, err := Hostlist(text)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("Hostlist(%q) = %v, %v; want %s", text, got, err, want)
		}
	}
	if got, err := Hostlist("n[1-65536]"); len(got) != MaxNodes || err != nil {
		t.Errorf("got %d names and error %v, want %d", len(got), err, MaxNodes)
	}
}

func TestHostlistErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "the list is empty",
		" ,, ":                           "the list is empty",
		"n[1-2":                          "a [ without a ]",
		"n1]":                            "a ] without a [",
		"n[[1-2]]":                       "a [ follows another",
		"n[]":                            "is not a number",
		"n[1-]":                          "is not a number",
		"n[-1]":                          "is not a number",
		"n[1,,2]":                        "is not a number",
		"n[a-b]":                         "is not a number",
		"n[1-10:2]":                      "is not a number",
		"n[123x456]":                     "is not a number",
		"n[1 - 2]":                       "is not a number",
		"n[3-1]":                         "ends before it begins",
		"n[1-1000000000]":                "at most 9 digits",
		"n[0000000001-2]":                "at most 9 digits",
		"n[0-65536]":                     "more than 65536 nodes",
		"n[0-255][0-256]":                "more than 65536 nodes",
		"n[0-255][0-255],m":              "more than 65536 nodes",
		"n[0-9][0-9][0-9][0-9][0-9]m":    "more than 65536 nodes",
		"n[0-65535][0-65535]":            "more than 65536 nodes", // 4 G names would not fit into memory
		"n[0-999999999]":                 "more than 65536 nodes",
		strings.Repeat("n", 256):         "more than 255 bytes",
		strings.Repeat("n", 255) + "[1]": "more than 255 bytes",
		"a/b":                            `contains '/'`,
		"né":                             "contains",
		"a\x00":                          "contains",
	} {
		got, err := Hostlist(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Hostlist(%.40q) = %d names, error %v; want %q", text, len(got), err, want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"node1":                          "node1 node1:7440 1",
		"node1,node2:7000, [::1]:7001":   "node1 node1:7440 1; node2 node2:7000 1; ::1 [::1]:7001 1",
		"node[1-2]:7000*3":               "node1 node1:7000 3; node2 node2:7000 3",
		"[1-2]":                          "1 1:7440 1; 2 2:7440 1",
		"[1-2]:7":                        "1 1:7 1; 2 2:7 1",
		"10.0.0.1,fd00::1,[fd00::0:2]":   "10.0.0.1 10.0.0.1:7440 1; fd00::1 [fd00::1]:7440 1; fd00::2 [fd00::2]:7440 1",
		"h:1,h:2,g:1":                    "h:1 h:1 1; h:2 h:2 1; g g:1 1",
		"[::1]:1,[::1]:2":                "[::1]:1 [::1]:1 1; [::1]:2 [::1]:2 1",
		"n1=10.0.0.1:7000*2,n2=10.0.0.2": "n1 10.0.0.1:7000 2; n2 10.0.0.2:7440 1",
		"a=h:1,b=h:2":                    "a h:1 1; b h:2 1",
		"n[1-2]=n[1-2]-ib":               "n1 n1-ib:7440 1; n2 n2-ib:7440 1",
	} {
		nodes, err := Parse(text, 7440)
		var got []string
		for _, n := range nodes {
			got = append(got, fmt.Sprintf("%s %s %d", n.Name, n.Address, n.Weight))
		}
		if err != nil || strings.Join(got, "; ") != want {
			t.Errorf("Parse(%q) = %v, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                  "the list is empty",
		"a:0":               "is not a port",
		"a:65536":           "is not a port",
		"a:":                "is not a port",
		"a:x":               "is not a port",
		"a*0":               "is not a positive number",
		"a*-1":              "is not a positive number",
		"a*1.5":             "is not a positive number",
		"a*":                "is not a positive number",
		"=a":                "the list is empty",
		"a=":                "the list is empty",
		"n[1-3]=m[1-2]":     "3 names for 2 hosts",
		"[::1":              "a [ without a ]",
		"[fe80::1%eth/0]:1": "is not a number",
		"n[0-65535],m":      "more than 65536 nodes",
	} {
		if nodes, err := Parse(text, 7440); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %d nodes, error %v; want %q", text, len(nodes), err, want)
		}
	}
}

func FuzzHostlist(f *testing.F) {
	for _, text := range []string{"a[01-03,7]b[1-2],c", "n[1-65536]", "[1]", "a[", "x[9-1]", "n[0-255][0-255]", "a\tb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Hostlist(text)
		if err != nil {
			return
		}
		if len(names) == 0 || len(names) > MaxNodes {
			t.Fatalf("Hostlist(%q) has %d names", text, len(names))
		}
		again, err := Hostlist(strings.Join(names, ","))
		if err != nil || !slices.Equal(names, again) {
			t.Errorf("Hostlist(%q) = %q, whose own list is %q, %v", text, names, again, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"node1,node2:7000,[::1]:7001", "n[1-2]=m[1-2]:1*2", "[1-2]:7", "fd00::1", "a:1,a:2", "[fe80::1%a]:2"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := Parse(text, 7440)
		if err != nil {
			return
		}
		r, err := New(nodes)
		if err != nil {
			return
		}
		// The list that the nodes make has the same nodes.
		var items []string
		for _, n := range r.Nodes() {
			items = append(items, fmt.Sprintf("%s*%d", n.Address, n.Weight))
		}
		again, err := Parse(strings.Join(items, ","), 1)
		if err != nil || len(again) != r.Len() {
			t.Fatalf("Parse(%q) = %v; their list has %v, %v", text, r.Nodes(), again, err)
		}
		for i, n := range r.Nodes() {
			if again[i].Address != n.Address || again[i].Weight != n.Weight {
				t.Errorf("Parse(%q) has %v, its list %v", text, n, again[i])
			}
		}
	})
}
