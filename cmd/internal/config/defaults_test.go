package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const gib = 1 << 30

// ext4 is the file system of a disk.
var ext4 = FileSystem{"ext4", false}

// testHost returns a host with 10 GiB of free space in its tmpfs, 100 GiB in its
// cache folder, 32 GiB of memory and no memory limit. It writes files below the root
// of the host.
func testHost(t *testing.T, files map[string]string) host {
	t.Helper()
	root := t.TempDir()
	h := host{
		root:  root,
		shm:   filepath.Join(root, "shm"),
		cache: filepath.Join(root, "cache"),
		tmp:   filepath.Join(root, "tmp"),
		uid:   7,
	}
	h.stat = func(path string) (int64, FileSystem, error) {
		if path == h.shm {
			return 10 * gib, tmpfs, nil
		}
		return 100 * gib, ext4, nil
	}
	all := map[string]string{"proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   33554432 kB\n"}
	for name, data := range files {
		all[name] = data
	}
	for name, data := range all {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestDefaultTiers(t *testing.T) {
	limits := func(self, dir, limit, used string) map[string]string {
		return map[string]string{"proc/self/cgroup": self, dir + "/memory.max": limit, dir + "/memory.current": used}
	}
	tests := []struct {
		name  string
		files map[string]string
		edit  func(h *host)
		want  string
	}{
		{"half of the tmpfs", nil, func(*host) {}, "ram 5GiB, disk 50%"},
		{"a quarter of the memory", map[string]string{"proc/meminfo": "MemAvailable: 8388608 kB"}, func(*host) {}, "ram 2GiB, disk 50%"},
		{"a quarter of the memory below the limit", limits("0::/job\n", "sys/fs/cgroup/job", "6442450944\n", "2147483648\n"), func(*host) {}, "ram 1GiB, disk 50%"},
		{"limit of a parent group", limits("0::/job/step/task\n", "sys/fs/cgroup/job", "6442450944\n", "2147483648\n"), func(*host) {}, "ram 1GiB, disk 50%"},
		{"no limit", limits("0::/job\n", "sys/fs/cgroup/job", "max\n", "2147483648\n"), func(*host) {}, "ram 5GiB, disk 50%"},
		{"page cache is reclaimable", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "8589934592",
			"sys/fs/cgroup/memory.current": "8589934592",
			"sys/fs/cgroup/memory.stat":    "anon 1\ninactive_file 4294967296\n",
		}, func(*host) {}, "ram 1GiB, disk 50%"},
		{"control groups of version 1", map[string]string{
			"proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n0::/\n",
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes":       "4294967296\n",
			"sys/fs/cgroup/memory/job/memory.usage_in_bytes":       "0\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":           "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":           "0\n",
			"sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes": "1\n",
			"sys/fs/cgroup/memory/elsewhere/memory.usage_in_bytes": "0\n",
		}, func(*host) {}, "ram 1GiB, disk 50%"},
		{"little memory", map[string]string{"proc/meminfo": "MemAvailable: 262143 kB"}, func(*host) {}, "disk 50%"},
		{"used more than the limit", limits("0::/\n", "sys/fs/cgroup", "1000", "2000"), func(*host) {}, "disk 50%"},
		{"not a tmpfs", nil, func(h *host) {
			h.stat = func(string) (int64, FileSystem, error) { return 100 * gib, ext4, nil }
		}, "disk 50%"},
		{"no /dev/shm", nil, func(h *host) {
			stat := h.stat
			h.stat = func(p string) (int64, FileSystem, error) {
				if p == h.shm {
					return 0, ext4, os.ErrNotExist
				}
				return stat(p)
			}
		}, "disk 50%"},
		{"no home", nil, func(h *host) { h.cache = "" }, "ram 5GiB"},
		{"full disk", nil, func(h *host) { setDisk(h, 127*mib) }, "ram 5GiB"},
		{"disk just enough", nil, func(h *host) { setDisk(h, 128*mib) }, "ram 5GiB, disk 50%"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := testHost(t, tt.files)
			tt.edit(&h)
			got, _, err := h.defaultTiers("/data")
			if err != nil {
				t.Fatal(err)
			}
			var s []string
			for _, tier := range got {
				s = append(s, tier.Name+" "+tier.Quota.String())
			}
			if got := strings.Join(s, ", "); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// If the cache folder is on a network file system, copies go to the folder of temporary files, if that is
// on a disk. The note names the reason.
func TestDefaultTiersOnNetworkHome(t *testing.T) {
	for _, tt := range []struct{ tmp, want, note string }{
		{"ext4", "$/tmp/milkweed-7", "$/tmp/milkweed-7 is used, because $/cache is on NFS"},
		{"NFS", "", "no disk holds copies, because $/cache is on NFS, and $/tmp is no disk of this machine"},
		{"tmpfs", "", "no disk holds copies, because $/cache is on NFS, and $/tmp is no disk of this machine"},
	} {
		h := testHost(t, nil)
		if err := errors.Join(os.Mkdir(h.cache, 0o700), os.Mkdir(h.tmp, 0o700)); err != nil {
			t.Fatal(err)
		}
		local := h.stat
		h.stat = func(path string) (int64, FileSystem, error) {
			switch available, kind, err := local(path); path {
			case h.cache:
				return available, FileSystem{"NFS", true}, err
			case h.tmp:
				return available, FileSystem{tt.tmp, tt.tmp == "NFS"}, err
			default:
				return available, kind, err
			}
		}
		tiers, notes, err := h.defaultTiers("/data")
		got := ""
		for _, tier := range tiers {
			if tier.Name == "disk" {
				got = tier.Path
			}
		}
		here := strings.NewReplacer("$", h.root)
		if want := here.Replace(tt.want); err != nil || got != want || !slices.Equal(notes, []string{here.Replace(tt.note)}) {
			t.Errorf("%s: the disk tier is %q, %q, %v; want %q, %q", tt.tmp, got, notes, err, want, here.Replace(tt.note))
		}
	}
}

// setDisk sets the free space of all file systems except the tmpfs.
func setDisk(h *host, available int64) {
	shm := h.shm
	h.stat = func(path string) (int64, FileSystem, error) {
		if path == shm {
			return 10 * gib, tmpfs, nil
		}
		return available, ext4, nil
	}
}

// If another user has taken the folder in /dev/shm, another one is used, and found again.
func TestDefaultTiersTaken(t *testing.T) {
	h := testHost(t, nil)
	name := filepath.Join(h.shm, "milkweed-7")
	mkdir := func(path string, owner int) {
		t.Helper()
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, owner, owner); err != nil {
			drivertest.Skipf(t, "root is required to make a folder of another user")
		}
	}
	want := func(when, path string) {
		t.Helper()
		tiers, _, err := h.defaultTiers("/data")
		if err != nil || tiers[0].Path != path {
			t.Errorf("%s: got %v, %v, want %s", when, tiers, err, path)
		}
	}
	own := filepath.Join(h.root, "own")
	mkdir(own, h.uid)
	mkdir(name, 8)
	want("taken", name+"-1")
	if err := os.Symlink(own, name+"-1"); err != nil {
		t.Fatal(err)
	}
	want("a symbolic link to an own folder", name+"-2")
	mkdir(name+"-3", h.uid)
	want("an own folder", name+"-3")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	want("an own folder, and the name is free", name+"-3")
	if err := os.Remove(name + "-3"); err != nil {
		t.Fatal(err)
	}
	for i := range maxFolders {
		if _, err := os.Lstat(fmt.Sprint(name, "-", i)); err != nil {
			mkdir(fmt.Sprint(name, "-", i), 8)
		}
	}
	mkdir(name, 8)
	if tiers, _, err := h.defaultTiers("/data"); err != nil || len(tiers) != 1 || tiers[0].Name != "disk" {
		t.Errorf("all names are taken: got %v, %v", tiers, err)
	}
}

func TestDefaultTiersPaths(t *testing.T) {
	h := testHost(t, nil)
	tiers, _, err := h.defaultTiers("/data")
	if err != nil || len(tiers) != 2 {
		t.Fatalf("got %v, %v", tiers, err)
	}
	if got, want := tiers[0].Path, filepath.Join(h.shm, "milkweed-7"); got != want {
		t.Errorf("ram: got %s, want %s", got, want)
	}
	if got, want := tiers[1].Path, filepath.Join(h.cache, "milkweed"); got != want {
		t.Errorf("disk: got %s, want %s", got, want)
	}
}

// After a restart the copies count as free space, and a disk tier that is full of
// copies is not omitted.
func TestDefaultTiersAfterRestart(t *testing.T) {
	const copies = 8 * mib
	id := DatasetID("/data")
	data := strings.Repeat("x", copies)
	h := testHost(t, map[string]string{
		fmt.Sprintf("shm/milkweed-%d/%s/files/a", os.Getuid(), id): data,
		"cache/milkweed/" + id + "/files/a":                        "x",
	})
	h.uid = os.Getuid()
	h.stat = func(path string) (int64, FileSystem, error) {
		if path == h.shm {
			return 256*mib - copies, tmpfs, nil
		}
		return 0, ext4, nil
	}
	tiers, _, err := h.defaultTiers("/data")
	if err != nil || len(tiers) != 2 {
		t.Fatalf("got %v, %v", tiers, err)
	}
	if got, want := tiers[0].Quota, (Quota{Bytes: 128 * mib}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDefaultTiersNone(t *testing.T) {
	h := testHost(t, nil)
	h.stat = func(string) (int64, FileSystem, error) { return 0, ext4, errors.New("broken") }
	_, _, err := h.defaultTiers("/data")
	userError(t, err)
}

func TestDefaultTiersHere(t *testing.T) {
	tiers, _, err := DefaultTiers(t.TempDir())
	if err != nil {
		userError(t, err) // this machine has no space
	}
	for _, tier := range tiers {
		if q := tier.Quota; tier.Name == "" || !filepath.IsAbs(tier.Path) || (q.Bytes > 0) == (q.Percent > 0) {
			t.Errorf("got %+v", tier)
		}
	}
}

func TestCgroupAvailableWithoutFiles(t *testing.T) {
	h := host{root: t.TempDir()}
	if got := h.cgroupAvailable(); got != math.MaxInt64 {
		t.Errorf("got %d, want no limit", got)
	}
}

func TestDatasetID(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9.-]{1,40}-[0-9a-f]{12}$`)
	seen := make(map[string]string)
	for source, prefix := range map[string]string{
		"/lustre/ImageNet 2012":            "imagenet-2012-",
		"/lustre/.hidden":                  "hidden-",
		"/":                                "dataset-",
		"/données":                         "donn--es-",
		"/a/train":                         "train-",
		"/b/train":                         "train-",
		"/a/" + strings.Repeat("long", 20): strings.Repeat("long", 10) + "-",
	} {
		id := DatasetID(source)
		if !form.MatchString(id) || !strings.HasPrefix(id, prefix) {
			t.Errorf("DatasetID(%q) = %q, want %s and a hash", source, id, prefix)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q are both %q", source, other, id)
		}
		seen[id] = source
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "v1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, want := DatasetID(link+"/v1"), DatasetID(dir+"/./v1"); got != want {
		t.Errorf("through a symbolic link: got %s, want %s", got, want)
	}
	// A link is a dataset of its own, whatever its target is, and however it is reached.
	if got := DatasetID(link); got != DatasetID(link+"/link") || got == DatasetID(dir) {
		t.Errorf("a symbolic link: got %s", got)
	}
	if got, want := DatasetID("/data"), "data-bd47413b5c03"; got != want {
		t.Errorf("got %s, want %s: existing copies would not be found", got, want)
	}
}
