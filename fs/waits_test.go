package fs

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/limit"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// A request for names or attributes counts as a wait if the source had to answer it, and not if the
// reply was cached.
func TestWaitsForNames(t *testing.T) {
	const latency, ttl = 5 * time.Millisecond, time.Hour
	synctest.Test(t, func(t *testing.T) {
		source := drivertest.NewMem(0)
		source.Put("a", []byte("a"))
		levels, err := tiers.New(limit.New(source, limit.Config{Latency: latency}), nil, tiers.Options{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		names, err := metadata.New(context.Background(), levels, metadata.Options{TTL: ttl}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer names.Close()
		f := &fileSystem{names: names}
		request := func(want int) {
			t.Helper()
			var entry fuse.EntryOut
			if status := f.Lookup(nil, &fuse.InHeader{NodeId: 1}, "a", &entry); status != fuse.OK {
				t.Fatal(status)
			}
			var attr fuse.AttrOut
			if status := f.GetAttr(nil, &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: entry.NodeId}}, &attr); status != fuse.OK {
				t.Fatal(status)
			}
			if got := names.Waits().Load(); got.Count != uint64(want) || got.Sum != time.Duration(want)*latency {
				t.Errorf("got %d waits of %v in all, want %d of %v each", got.Count, got.Sum, want, latency)
			}
		}
		request(1)
		request(1)
		time.Sleep(2 * ttl)
		request(2)
	})
}
