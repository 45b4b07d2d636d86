package check

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// The room of the tiers is compared with what the dataset needs.
func TestRoom(t *testing.T) {
	files := func(n, bytes int64) (need Need) {
		for range n {
			need.Add(bytes / n)
		}
		return need
	}
	need := files(1000, 30*gib)
	partial, withDirs := files(1000, 30*gib), files(900, 30*gib)
	partial.Partial, withDirs.Dirs = "there are more", 100
	unit := func(u int64) func(w *world) {
		return func(w *world) { w.unit = func(string) (int64, error) { return u, nil } }
	}
	quota := func(q config.Quota) func(*world) { return func(w *world) { w.config.Tiers[0].Quota = q } }
	second := func(w *world) {
		w.config.Tiers = append(w.config.Tiers, config.Tier{Name: "other", Path: w.path("other"), Quota: config.Quota{Bytes: 35 * gib}})
	}
	inClusters := func(first int64) func(w *world) {
		return func(w *world) {
			quota(config.Quota{Bytes: first * gib})(w)
			second(w)
			w.must(os.Mkdir(w.path("other"), 0o755))
			w.unit = func(dir string) (int64, error) {
				if dir == w.path("other") {
					return 64 << 10, nil
				}
				return 4096, nil
			}
		}
	}
	for _, test := range []struct {
		name   string
		change func(w *world)
		need   Need
		status Status
		detail string
	}{
		{"a percentage of what is free", quota(config.Quota{Percent: 90}), need, OK, "the dataset needs 30 GiB (1,000 files), and the tiers have 36 GiB"},
		{"too small a quota", quota(config.Quota{Bytes: 29 * gib}), need, Warning, "the dataset needs 30 GiB (1,000 files), and the tiers have 29 GiB"},
		{"more than the device has", quota(config.Quota{Bytes: 50 * gib}), need, OK, "the dataset needs 30 GiB (1,000 files), and the tiers have 40 GiB"},
		{"two tiers on one device", second, files(1000, 41*gib), Warning, "the dataset needs 41 GiB (1,000 files), and the tiers have 40 GiB"},
		{"a window", func(w *world) { w.config.Placement.Window = config.Quota{Percent: 50} }, need, Warning,
			"the dataset needs 30 GiB (1,000 files), and the tiers have 18 GiB"},
		{"a tier that does not work", func(w *world) { second(w); w.failStat(w.path("other"), unix.EIO) }, need, OK,
			"the dataset needs 30 GiB (1,000 files), and the tiers have 36 GiB"},
		{"no size", func(w *world) {
			quota(config.Quota{Bytes: 31 * gib})(w)
			w.fileSystem(w.path("ssd"), unix.Statfs_t{Bsize: 1})
		}, need, OK, "the dataset needs 30 GiB (1,000 files), and the tiers have 31 GiB"},
		{"copies of earlier mounts", func(w *world) {
			w.must(os.MkdirAll(w.path("ssd/new/"+config.DatasetID(w.config.Source.Name())), 0o755))
			w.fileSystem(w.path("ssd/new"), disk(unix.EXT4_SUPER_MAGIC, 100*gib, 40*gib))
		}, need, OK,
			"the dataset needs 30 GiB (1,000 files), and the tiers have at most 90 GiB"},
		{"peers", func(w *world) { w.config.Peers.Roster = "a,b"; quota(config.Quota{Bytes: gib})(w) }, need, OK,
			"the dataset needs 30 GiB (1,000 files), and the tiers have 1.0 GiB; it is divided among the nodes"},
		{"few inodes", func(w *world) {
			st := disk(unix.TMPFS_MAGIC, 100*gib, 40*gib)
			st.Files, st.Ffree = 2000, 999
			w.fileSystem(w.path("ssd"), st)
		}, withDirs, Warning,
			"the dataset needs 30 GiB (900 files), and the tiers have 36 GiB; it needs 1,000 inodes, and their file systems have 999"},
		{"clusters of 64 KiB", unit(64 << 10), files(1<<20, 20*gib), Warning,
			"the dataset needs 64 GiB (1,048,576 files), and the tiers have 36 GiB"},
		{"clusters in a tier that is not needed", inClusters(36), files(1<<20, 20*gib), OK,
			"the dataset needs 20 GiB (1,048,576 files), and the tiers have 40 GiB"},
		{"clusters in a tier for the rest", inClusters(10), files(1<<20, 20*gib), Warning, // 10 GiB, and 8 of 2.5
			"the dataset needs 42 GiB (1,048,576 files), and the tiers have 40 GiB"},
		{"clusters with room for the rest", inClusters(15), files(1<<20, 20*gib), OK,
			"the dataset needs 31 GiB (1,048,576 files), and the tiers have 40 GiB"},
		{"an unknown unit", func(w *world) { w.unit = func(string) (int64, error) { return 0, unix.ENOSPC } }, files(1<<20, 20*gib), OK,
			"the dataset needs 20 GiB (1,048,576 files), and the tiers have 36 GiB"},
		{"no file in time", func(*world) {}, Need{Partial: "there are more"}, OK, "not known: there are more"},
		{"some files", func(*world) {}, partial, OK,
			"the dataset needs at least 30 GiB (1,000 files), and the tiers have 36 GiB; there are more"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.fileSystem(w.path("ssd"), disk(unix.EXT4_SUPER_MAGIC, 100*gib, 40*gib))
			test.change(w)
			got := w.compareRoom(t.Context(), w.config, test.need)
			if len(got) != 1 || got[0].Name != "room" || got[0].Status != test.status || got[0].Detail != test.detail || (got[0].Remedy == "") != (test.status == OK) {
				t.Errorf("got %+v, want %s: %s", got, test.status, test.detail)
			}
		})
	}
	w := newWorld(t)
	w.timeout = 1
	hanging := make(chan struct{})
	defer close(hanging)
	w.statfs = func(string) (unix.Statfs_t, error) { <-hanging; return unix.Statfs_t{}, errors.ErrUnsupported }
	if got := w.compareRoom(t.Context(), w.config, need); len(got) != 1 || got[0].Status != Warning || got[0].Remedy == "" {
		t.Errorf("a tier that hangs: %+v", got)
	}
}
