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
	need := Need{Files: 1000, Bytes: 30 * gib}
	quota := func(q config.Quota) func(*world) { return func(w *world) { w.config.Tiers[0].Quota = q } }
	second := func(w *world) {
		w.config.Tiers = append(w.config.Tiers, config.Tier{Name: "other", Path: w.path("other"), Quota: config.Quota{Bytes: 35 * gib}})
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
		{"two tiers on one device", second, Need{Files: 1000, Bytes: 41 * gib}, Warning, "the dataset needs 41 GiB (1,000 files), and the tiers have 40 GiB"},
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
		}, Need{Files: 900, Dirs: 100, Bytes: 30 * gib}, Warning,
			"the dataset needs 30 GiB (900 files), and the tiers have 36 GiB; it needs 1,000 inodes, and their file systems have 999"},
		{"no file in time", func(*world) {}, Need{Partial: "there are more"}, OK, "not known: there are more"},
		{"some files", func(*world) {}, Need{Files: 1000, Bytes: 30 * gib, Partial: "there are more"}, OK,
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
