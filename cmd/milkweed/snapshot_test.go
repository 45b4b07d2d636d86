package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// The metadata is saved while the dataset is mounted, within saveInterval after a change, and not
// again until the next change. So a daemon that is killed leaves a snapshot.
func TestSaveOften(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		source := drivertest.NewMem(0)
		source.Put("a", nil)
		source.Put("b", nil)
		levels, err := tiers.New(source, nil, tiers.Options{}, log)
		if err != nil {
			t.Fatal(err)
		}
		mount := config.Mount{AttrTimeout: time.Hour, MetadataSnapshot: path}
		d := &daemon{cfg: &config.Config{Mount: mount}, levels: levels, log: log}
		if d.names, err = metadata.New(t.Context(), levels, metadata.Options{TTL: time.Hour, SnapshotTTL: time.Minute}, log); err != nil {
			t.Fatal(err)
		}
		defer d.names.Close()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { d.saveOften(ctx); close(ended) }()

		var last os.FileInfo
		wantSaved := func(what string, want bool) {
			t.Helper()
			time.Sleep(saveInterval + time.Second)
			info, err := os.Stat(path)
			if saved := err == nil && !os.SameFile(info, last); saved != want {
				t.Errorf("%s: saved is %v, want %v", what, saved, want)
			}
			last = info
		}
		lookUp := func(name string) {
			if _, err := d.names.Resolve(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
		wantSaved("unused", false)
		lookUp("a")
		wantSaved("a name was looked up", true)
		lookUp("a")
		wantSaved("nothing has changed", false)
		lookUp("b")
		wantSaved("another name was looked up", true)
		stop()
		<-ended
	})
}
