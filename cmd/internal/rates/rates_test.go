package rates_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

var start = time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)

// later returns what daemon d is like some activity later.
func later(d *controltest.Daemon) (before, after control.Status) {
	before, after = d.Status(context.Background()), d.Status(context.Background())
	after.Opens = map[string]map[string]int64{"ram": {"cached": 102, "passthrough": 816}, "source": {"cached": 103}, "fill": {"cached": 3}}
	after.OpenedBytes = map[string]map[string]int64{"ram": {"cached": 60 << 20, "passthrough": 7040 << 20}, "source": {"cached": 300 << 20}}
	after.ReadBytes = map[string]int64{"ram": 34 << 20, "source": 3 << 20, "fill": 2 << 20}
	after.Tiers[0].Reads += 10
	after.Tiers[0].Bytes += 2 << 20
	after.Source.Reads += 4
	after.Source.Stats += 2
	after.Source.Bytes += 4 << 20
	after.Placement.Placed += 6
	after.Waits = slices.Clone(after.Waits)
	after.Waits[0].Seconds += 3
	if p := after.Peers; p != nil {
		p.Bytes += 2 << 20
		p.ServedBytes += 8 << 20
	}
	return before, after
}

func TestBetween(t *testing.T) {
	before, after := later(&controltest.Daemon{MountPoint: "/mnt", Peered: true})
	p, ok := rates.Between(&before, &after, start, start.Add(2*time.Second))
	if !ok {
		t.Fatal("no point")
	}
	want := []rates.Level{
		{Name: "ram", Opens: 9, Reads: 5, Bytes: 1 << 20, Readers: 2 << 20, Passthrough: 20 << 20, Used: 100 << 20, Quota: 400 << 20, Files: 90},
		{Name: "ssd", Quota: 800 << 20},
		{Name: "peers", Bytes: 1 << 20},
		{Name: "fill", Opens: 1.5, Readers: 1 << 20},
		{Name: "source", Opens: 1.5, Reads: 2, Bytes: 2 << 20},
	}
	if !slices.Equal(p.Levels, want) {
		t.Errorf("levels:\n got %+v\nwant %+v", p.Levels, want)
	}
	if ratio, ok := p.HitRatio(); !ok || ratio != 0.75 {
		t.Errorf("hit ratio: got %v, %v, want 18 of 24 opens", ratio, ok)
	}
	if share, ok := p.PlacedShare(); !ok || share != 0.09 {
		t.Errorf("placed: got %v, %v, want 90 of 1000", share, ok)
	}
	if read, passthrough := p.Bytes(); read != 3<<20 || passthrough != 20<<20 {
		t.Errorf("bytes: got %v, %v", read, passthrough)
	}
	if w := map[string]float64{"latency": 1.5, "bandwidth": 0, "fill": 0, "tier": 0, "peers": 0}; !maps.Equal(p.Waits, w) {
		t.Errorf("waits: got %v, want %v", p.Waits, w)
	}
	if w := map[string]float64{"open": 0, "read": 2, "stat": 1, "readdir": 0}; !maps.Equal(p.Operations, w) {
		t.Errorf("operations: got %v, want %v", p.Operations, w)
	}
	if p.Placed != 3 || p.PeerBytes != 1<<20 || p.ServedBytes != 4<<20 || p.Filling != 2 || p.Queued != 7 || p.Slowdown != 1.25 {
		t.Errorf("got %+v", p)
	}
}

func TestTotals(t *testing.T) {
	_, after := later(&controltest.Daemon{MountPoint: "/mnt", Peered: true})
	want := []rates.Total{
		{Name: "ram", Tier: true, Opens: 918, Reads: 1010, Bytes: 902 << 20, Readers: 34 << 20, Passthrough: 7040 << 20}, {Name: "ssd", Tier: true},
		{Name: "peers", Reads: 57, Bytes: 48 << 20}, {Name: "fill", Opens: 3, Readers: 2 << 20}, {Name: "source", Opens: 103, Reads: 404, Bytes: 304 << 20, Readers: 3 << 20},
	}
	if got := rates.Totals(&after); !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// There is no rate between different daemons, or without time between two statuses.
func TestBetweenNothing(t *testing.T) {
	before, after := later(&controltest.Daemon{MountPoint: "/mnt"})
	if _, ok := rates.Between(&before, &after, start, start); ok {
		t.Error("a rate without time")
	}
	restarted := after
	restarted.Since = restarted.Since.Add(time.Minute)
	if _, ok := rates.Between(&before, &restarted, start, start.Add(time.Second)); ok {
		t.Error("a rate over the restart of a daemon")
	}
	var empty rates.Point
	if _, ok := empty.HitRatio(); ok {
		t.Error("a hit ratio without opens")
	}
	if _, ok := empty.PlacedShare(); ok {
		t.Error("a share of no files")
	}
}

// Nothing that a job reads is named in a Point.
func TestPointsHaveNoPaths(t *testing.T) {
	before, after := later(&controltest.Daemon{MountPoint: "/mnt/secret", Peered: true})
	p, _ := rates.Between(&before, &after, start, start.Add(time.Second))
	if b, err := json.Marshal(p); err != nil || strings.Contains(string(b), "/") {
		t.Errorf("%s, %v", b, err)
	}
}

// A History has one point for each interval of the last half hour.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &controltest.Daemon{MountPoint: "/mnt"}
		var opens atomic.Int64
		h := rates.NewHistory(func(ctx context.Context) control.Status {
			s := d.Status(ctx)
			s.Opens["ram"]["cached"] += opens.Load()
			return s
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { h.Run(ctx); close(ended) }()
		synctest.Wait()
		if got := h.Since(time.Time{}); len(got) != 0 {
			t.Errorf("%d points at the start", len(got))
		}
		opens.Add(10)
		time.Sleep(rates.Interval + time.Second)
		first := h.Since(time.Time{})
		if len(first) != 1 || first[0].LocalOpens != 10 || first[0].Seconds != rates.Interval.Seconds() {
			t.Errorf("got %+v", first)
		}
		time.Sleep(2 * rates.Interval)
		if got := h.Since(first[0].Time); len(got) != 2 || got[0].Opens != 0 {
			t.Errorf("got %+v", got)
		}
		time.Sleep(time.Hour)
		all := h.Since(time.Time{})
		if oldest := time.Since(all[0].Time); oldest > 31*time.Minute || oldest < 29*time.Minute {
			t.Errorf("the oldest of %d points is %v old", len(all), oldest)
		}
		if first[0].LocalOpens != 10 {
			t.Error("a point that was returned has changed")
		}
		stop()
		<-ended
	})
}
