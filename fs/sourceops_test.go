package fs_test

import (
	"encoding/json"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/pfs"
	"github.com/milkweedfs/milkweed/tiers"
)

// servePFS is the process of a simulated PFS. It prints its counts for each line of standard input.
// args are the folder, the mount point and the TTL of the client.
func servePFS(args []string) error {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	p, err := pfs.Mount(args[0], args[1], "pfs", "milkweed", pfs.Config{TTL: ttl})
	if err != nil {
		return err
	}
	fmt.Println("open")
	for line := ""; err == nil; {
		if _, err = fmt.Scanln(&line); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(p.Use())
		}
	}
	if err := p.Unmount(); err != nil {
		return err
	}
	p.Wait()
	return nil
}

// A client is a mounted simulated PFS.
type client struct {
	*held
	point string
}

// mountPFS mounts folder as a client of a PFS with a TTL does, which has cached nothing yet.
func mountPFS(t *testing.T, folder string, ttl time.Duration) client {
	t.Helper()
	point := t.TempDir()
	return client{holder(t, "pfs", folder, point, ttl.String()), point}
}

// use returns the operations since the mount.
func (c client) use() (u pfs.Use) {
	c.t.Helper()
	fmt.Fprintln(c.in, "use")
	if err := json.Unmarshal([]byte(c.line()), &u); err != nil {
		c.t.Fatal(err)
	}
	return u
}

// accesses are the ways in which a job accesses a dataset, by name. They get its root, and its files
// in the order of their names.
var accesses = map[string]func(root string, files []string) error{
	"unlisted": func(root string, files []string) error {
		return readEach(root, shuffled(files))
	},
	"listed": func(root string, files []string) error {
		if err := list(root, files); err != nil {
			return err
		}
		return readEach(root, shuffled(files))
	},
	"in order": readListed(slices.Clone[[]string]),
	"find":     readListed(func([]string) []string { return nil }),
	"scandir":  readListed(shuffled),
	"stat": func(root string, files []string) error {
		for _, name := range shuffled(files) {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				return err
			}
			if err := readEach(root, []string{name}); err != nil {
				return err
			}
		}
		return nil
	},
	"missing": wantMissing,
	"missing, listed": func(root string, files []string) error {
		if err := list(root, files); err != nil {
			return err
		}
		return wantMissing(root, files)
	},
	"stat all": func(root string, files []string) error {
		for _, name := range shuffled(files) {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				return err
			}
		}
		return readEach(root, shuffled(files))
	},
}

// readListed returns an access that finds the files by listing all directories, as find and
// ImageFolder do, and reads some of them.
func readListed(which func(files []string) []string) func(root string, files []string) error {
	return func(root string, files []string) error {
		var found []string
		err := filepath.WalkDir(root, func(p string, d iofs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				found = append(found, p[len(root)+1:])
			}
			return err
		})
		if err == nil && !slices.Equal(found, files) {
			err = fmt.Errorf("found %d files, want %d", len(found), len(files))
		}
		if err != nil {
			return err
		}
		return readEach(root, which(found))
	}
}

// list lists the directories of the files.
func list(root string, files []string) error {
	for _, dir := range directories(files) {
		if _, err := os.ReadDir(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return nil
}

// wantMissing looks for a file beside each file, which does not exist.
func wantMissing(root string, files []string) error {
	for _, name := range shuffled(files) {
		if _, err := os.Stat(filepath.Join(root, name+".json")); !os.IsNotExist(err) {
			return fmt.Errorf("a name that does not exist: %v", err)
		}
	}
	return nil
}

func shuffled(files []string) []string {
	files = slices.Clone(files)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	return files
}

// directories returns the directories that have files.
func directories(files []string) []string {
	var dirs []string
	for _, name := range files {
		dirs = append(dirs, filepath.Dir(name))
	}
	return slices.Compact(dirs)
}

// readEach opens files, requests their attributes, and reads them.
func readEach(root string, files []string) error {
	for _, name := range files {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			return err
		}
		_, err = f.Stat()
		if err == nil {
			_, err = io.Copy(io.Discard, f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// access is the process of a job. args are the name of one of accesses, the root and the files.
func access(args []string) error { return accesses[args[0]](args[1], args[2:]) }

// A job that reads each file once costs the source at most the operations that it costs without
// Milkweed, of each kind, and 64 for each directory; whether or not the client of the source
// caches names, and however the job finds the files.
func TestSourceOperations(t *testing.T) {
	if testing.Short() {
		t.Skip("counts operations in real time")
	}
	t.Parallel()
	var flat, deep []string
	for i := range 300 {
		flat = append(flat, fmt.Sprintf("f%03d", i))
		deep = append(deep, fmt.Sprintf("a/b/c%d/f%03d", i/150, i))
	}
	for _, test := range []struct {
		name  string
		files []string
		ttl   time.Duration
	}{
		{"flat, revalidated", flat[:150], 0},
		{"deep, revalidated", deep, 0},
		{"deep, cached", deep, time.Minute},
	} {
		files, folder := test.files, t.TempDir()
		for i, name := range files {
			write(t, folder, name, 1000, uint64(i))
		}
		for name := range accesses {
			t.Run(test.name+", "+name, func(t *testing.T) {
				t.Parallel()
				use := func(c client, root string) pfs.Use {
					child(t, "access", append([]string{name, root}, files...)...)
					return c.use()
				}
				c := mountPFS(t, folder, test.ttl)
				direct := use(c, c.point)
				for _, mode := range []fs.Mode{fs.Cached, fs.Stateless} {
					c := mountPFS(t, folder, test.ttl)
					s := newStack(t, stackOptions{over: c.point, memory: true, quotas: []tiers.Quota{bytesQuota(1 << 30)}, mode: mode}, nil)
					got := use(c, s.point)
					s.end()
					if exceeds(got, direct, int64(64*len(directories(files)))) {
						t.Errorf("%v: got %+v, directly %+v", mode, got, direct)
					}
				}
			})
		}
	}
}

// exceeds reports whether the number of operations of one kind exceeds another one by more than slack.
func exceeds(u, other pfs.Use, slack int64) bool {
	more := u.Sub(other)
	return max(more.Lookups, more.Getattrs, more.Opens, more.Reads, more.Lists, more.Others) > slack
}
