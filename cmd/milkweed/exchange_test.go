package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

func TestExchangeCommand(t *testing.T) {
	d := &controltest.Daemon{ExchangeState: placement.ExchangeStats{ID: "id", Files: 3, Nodes: 4, Node: 2, Epoch: 5, Fraction: 0.3}}
	point := served(t, d)
	file := filepath.Join(t.TempDir(), "files.txt")
	if err := os.WriteFile(file, []byte("b\n"+point+"/a/1\n./b\n\n.//a/0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _, err := runMilkweed(t, "exchange", point, file, "--seed", "7", "-q", "0.25", "--epoch", "5", "--reader", "1", "--readers", "2")
	wantCode(t, err, exit.OK)
	if want := point + ": epoch 5 of 3 files on 4 nodes, of which this is number 2; a fraction of 0.3 moves before each epoch\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	configs, _ := d.Exchanged.Calls()
	cfg := configs[0]
	if cfg.Seed != 7 || cfg.Fraction != 0.25 || cfg.Nodes != 4 || cfg.Node != 2 || cfg.Files.Len() != 3 {
		t.Errorf("got %+v", cfg)
	}
	for i, want := range []string{"a/0", "a/1", "b"} {
		if got := cfg.Files.Name(i); got != want {
			t.Errorf("file %d is %q, want %q", i, got, want)
		}
	}
	_, _, err = runMilkweed(t, "exchange", point, "--epoch", "6")
	wantCode(t, err, exit.OK)
	_, _, err = runMilkweed(t, "exchange", "--stop", point)
	wantCode(t, err, exit.OK)
	if _, calls := d.Exchanged.Calls(); !slices.Equal(calls, []string{"start 5 1/2", "begin 6 0/1", "stop"}) {
		t.Errorf("got %q", calls)
	}
	d.ExchangeErr = &exit.Error{Code: exit.Tier, Err: errors.New("no room")}
	_, _, err = runMilkweed(t, "exchange", point, file)
	wantCode(t, err, exit.Tier)
	d.ExchangeState = placement.ExchangeStats{}
	wrong := filepath.Join(t.TempDir(), "wrong.txt")
	if err := os.WriteFile(wrong, []byte("a\n/else\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err = runMilkweed(t, "exchange", point, wrong); err == nil || !strings.Contains(err.Error(), wrong+`: line 2: "/else" is not the name of a file in the mount`) {
		t.Errorf("got %v", err)
	}
	for words, code := range map[string]exit.Code{
		"--epoch 1 " + point: exit.Usage, "--seed 1 " + point: exit.Usage, "--show --stop " + point: exit.Usage, "--json " + point: exit.Usage,
		"--show " + point + " " + file: exit.Usage, point + " " + file + ".missing": exit.Usage, t.TempDir(): exit.NotMounted, "--fraction 2 " + point + " " + file: exit.Usage,
		point + " /dev/null": exit.Usage, point + " " + wrong: exit.Usage, "--by-bytes " + point + " " + file: exit.Usage,
	} {
		_, _, err := runMilkweed(t, append([]string{"exchange"}, strings.Fields(words)...)...)
		wantCode(t, err, code)
	}
}

func TestExchangeShow(t *testing.T) {
	d := &controltest.Daemon{}
	point := served(t, d)
	out, _, err := runMilkweed(t, "exchange", "--show", point)
	wantCode(t, err, exit.OK)
	if want := point + ": no exchange\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	d.Peered = true
	d.ExchangeState = placement.ExchangeStats{
		ID: "id", Files: 4000, Nodes: 3, Node: 0, Epoch: 5, Fraction: 0.3, Readers: []int64{5},
		ShareFiles: 1000, ShareBytes: 100 << 20, Missing: 2, IncomingFiles: 300, IncomingBytes: 30 << 20, ArrivedFiles: 200, ArrivedBytes: 20 << 20,
		GivenFiles: 1, GivenBytes: 4096, Room: 130 << 20, MostRoom: 131 << 20,
		ExchangeCounters: placement.ExchangeCounters{Dropped: 1400, DroppedForRoom: 3},
	}
	out, _, err = runMilkweed(t, "exchange", "--show", point)
	wantCode(t, err, exit.OK)
	want := point + `: epoch 5 of 4,000 files on 3 nodes, of which this is number 0; a fraction of 0.3 moves before each epoch

share       1,000 files (100 MiB), 2 without a copy
next epoch  200 of 300 files arrived (20 MiB of 30 MiB)
given away  1 file (4.0 KiB) kept until their new holders have their shares
room        130 MiB for two epochs, at most 131 MiB so far
dropped     1,400 files that were given away, 3 for room

NODE   EPOCH  LAG  STATE
node1  5      0    has its share
node2  4      1    waits for files
node3  -      -    connection refused
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	out, _, err = runMilkweed(t, "exchange", "--show", "--json", point)
	wantCode(t, err, exit.OK)
	var got exchangeReport
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.ID != "id" || got.Nodes != 3 || len(got.Others) != 3 || got.Others[1].Epoch != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestExchange runs the exchange of a mount without peers, which is that of one node.
func TestExchange(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"d/a", "d/b", "c"} {
		s.write(name, 50_000)
	}
	list := s.dir + "/files.txt"
	s.check(os.WriteFile(list, []byte("c\nd/a\nd/b\n"), 0o644))
	s.milkweed(s.mountWords("64MiB")...)
	s.milkweed("exchange", "--by-bytes", "--seed", "3", s.point, list)
	s.eventually("all files are copied", func() bool { return s.status().Exchange.Complete })
	before := s.status().Source.Reads
	for _, epoch := range []string{"1", "2", "0"} {
		s.milkweed("exchange", "--epoch", epoch, s.point)
		for _, name := range []string{"d/a", "d/b", "c"} {
			s.must("cmp", s.source+"/"+name, s.point+"/"+name)
		}
	}
	st := s.status()
	if st.Source.Reads != before || st.Exchange.ShareFiles != 3 || st.Exchange.IncomingFiles != 0 || st.Exchange.Dropped+st.Exchange.DroppedForRoom != 0 {
		t.Errorf("%d reads of the source before, %d after: %+v", before, st.Source.Reads, st.Exchange)
	}
	s.milkweed("exchange", "--stop", s.point)
	if id := s.status().Exchange.ID; id != "" {
		t.Errorf("the exchange %s goes on", id)
	}
}
