package control_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/placement"
)

// The files of an exchange arrive in their order, with any bytes except NUL, and the ID covers all
// arguments that determine the plan.
func TestExchange(t *testing.T) {
	d := &controltest.Daemon{ExchangeState: placement.ExchangeStats{ID: "id", Files: 3, Readers: []int64{5, -1}}}
	c := dial(t, d)
	body := "a\nb\x00d/\xff\x00d0\x00"
	req := control.ExchangeRequest{Seed: math.MaxUint64, Fraction: 0.1, Nodes: 3, Node: 2, Epoch: 5, Reader: 1, Readers: 2}
	got, err := c.StartExchange(t.Context(), req, []byte(body))
	if err != nil || !reflect.DeepEqual(got, d.ExchangeState) {
		t.Errorf("got %+v, %v", got, err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "milkweed exchange 1\n3 18446744073709551615 %016x count\n%s", math.Float64bits(0.1), body))
	configs, _ := d.Exchanged.Calls()
	cfg := configs[0]
	if cfg.ID != hex.EncodeToString(sum[:16]) || cfg.Seed != math.MaxUint64 || cfg.Fraction != 0.1 || cfg.Nodes != 3 || cfg.Node != 2 || cfg.Sizes != nil {
		t.Errorf("got %+v", cfg)
	}
	for i, want := range []string{"a\nb", "d/\xff", "d0"} {
		if got := cfg.Files.Name(i); got != want {
			t.Errorf("file %d is %q; want %q", i, got, want)
		}
	}
	req.Nodes, req.Node, req.ByBytes = 0, 0, true // the daemon knows the nodes
	if _, err := c.StartExchange(t.Context(), req, []byte("a\x005\x00b\x000\x00")); err != nil {
		t.Error(err)
	}
	configs, _ = d.Exchanged.Calls()
	if cfg := configs[1]; cfg.Nodes != 4 || cfg.Node != 2 || !slices.Equal(cfg.Sizes, []int64{5, 0}) || cfg.Files.Len() != 2 {
		t.Errorf("got %+v", cfg)
	}
	if err := c.BeginEpoch(t.Context(), "id", 6, 0, 2); err != nil {
		t.Error(err)
	}
	if code, reply := request(t, "POST /v1/exchange/epoch?id=other&epoch=6", nil); code != http.StatusNotFound {
		t.Errorf("another exchange: %d, %s", code, reply)
	}
	if got, err := c.Exchange(t.Context()); err != nil || !reflect.DeepEqual(got, d.ExchangeState) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := c.StopExchange(t.Context()); err != nil {
		t.Error(err)
	}
	_, calls := d.Exchanged.Calls()
	if want := []string{"start 5 1/2", "start 5 1/2", "begin 6 0/2", "begin 6 0/1", "stop"}; !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q", calls, want)
	}
}

// A request that is no exchange is refused with a reason, and the daemon does not see it.
func TestExchangeRefused(t *testing.T) {
	d := &controltest.Daemon{}
	dial(t, d)
	const good = "seed=1&fraction=0.5"
	for _, r := range []struct{ query, body, want string }{
		{"fraction=0.5", "a\x00", "seed: "},
		{"seed=-1&fraction=0.5", "a\x00", "seed: "},
		{"seed=1", "a\x00", "fraction: "},
		{"seed=1&fraction=NaN", "a\x00", "fraction: "},
		{"seed=1&fraction=1.1", "a\x00", "fraction: "},
		{good + "&balance=luck", "a\x00", "balance: "},
		{good + "&nodes=x", "a\x00", "nodes: "},
		{good + "&nodes=2&node=-1", "a\x00", "node: "},
		{good + "&epoch=1e3", "a\x00", "epoch: "},
		{good + "&reader=3000000000", "a\x00", "reader: "},
		{good, "", "there are no files"},
		{good, "a", "unexpected EOF"},
		{good, "a\x00a\x00", "does not come after"},
		{good, "b\x00a\x00", "does not come after"},
		{good, "\x00", "is not a path"},
		{good, "/a\x00", "is not a path"},
		{good, "../a\x00", "is not a path"},
		{good, "a//b\x00", "is not a path"},
		{good, ".\x00", "is not a path"},
		{good, strings.Repeat("x", 9<<10) + "\x00", "more than 8192 bytes"},
		{good + "&balance=bytes", "a\x00", "unexpected EOF"},
		{good + "&balance=bytes", "a\x00-1\x00", "is not a number"},
		{good + "&balance=bytes", "a\x00b\x00", "is not a number"},
	} {
		code, reply := request(t, "POST /v1/exchange?"+r.query, strings.NewReader(r.body))
		if code != http.StatusBadRequest || !strings.Contains(reply, r.want) {
			t.Errorf("%s, %.20q: got %d, %s, want %q", r.query, r.body, code, reply, r.want)
		}
	}
	if configs, calls := d.Exchanged.Calls(); len(configs)+len(calls) > 0 {
		t.Errorf("got %+v, %q", configs, calls)
	}
	d.ExchangeErr = &exit.Error{Code: exit.Tier, Err: errors.New("no room")}
	if code, reply := request(t, "POST /v1/exchange?"+good, strings.NewReader("a\x00")); code != http.StatusInternalServerError || !strings.Contains(reply, "no room") {
		t.Errorf("got %d, %s", code, reply)
	}
}
