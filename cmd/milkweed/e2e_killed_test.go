package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// kills is the number of times that TestKilled kills the daemon.
const kills = 200

// After the daemon was killed while it copied files, the next mount has the bytes of the source.
// It uses the complete copies, and nothing is left of the others.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills and restarts daemons many times")
	}
	k := &killed{site: newSite(t), rng: rand.New(rand.NewPCG(1, 2)), want: make(map[string][]byte)}
	for range 4 {
		k.readers = append(k.readers, newFileReader(t))
	}
	for i := range 1200 {
		k.put(fmt.Sprintf("%d/%04d.jpg", i%10, i), 12_000+i*7919%24_000)
	}
	for i := range 2 {
		k.put(fmt.Sprintf("large%d.tfrecord", i), 3<<20+i)
	}
	for n := 0; n < kills; {
		copies := k.restart()
		last := n%10 == 9
		if last || copies > len(k.names)/2 {
			k.verify(len(k.names)) // it places all files
			k.umount()
			k.emptyTiers()
			k.restart()
		} else {
			k.verify(20)
		}
		if k.fillAndKill() {
			n++
		}
		k.umount()
		if t.Failed() {
			t.Fatalf("after %d kills", n)
		}
	}
	k.restart()
	k.verify(len(k.names))
	k.umount()
	k.wantNothing()
	t.Logf("%d kills, %v after the first read on average", kills, k.waited/kills)
}

// A killed is a site whose daemon is killed repeatedly.
type killed struct {
	*site
	readers []*fileReader
	rng     *rand.Rand
	names   []string
	want    map[string][]byte // the content of the files
	placed  map[string]int64  // the copies at the time of the mount
	waited  time.Duration     // sum of the times from the first read to the kill
}

func (k *killed) put(name string, size int) {
	k.names = append(k.names, name)
	k.want[name] = k.write(name, size)
}

// restart mounts, and returns the number of complete copies.
func (k *killed) restart() int {
	k.t.Helper()
	k.detectRaces(k.rng.IntN(8) == 0)
	k.mount("8MiB", "1GiB")
	k.eventually("the tiers are open", func() bool { // a busy disk may not answer while mount waits
		return !slices.ContainsFunc(k.status().Tiers, func(t control.Tier) bool { return t.Health == control.Down })
	})
	if got := k.sockets(); len(got) != 1 {
		k.t.Errorf("sockets: %q, want one", got)
	}
	k.placed = make(map[string]int64)
	for tier := 1; tier <= 2; tier++ {
		if parts := k.files(k.dataset(tier) + "/incoming"); len(parts) > 0 {
			k.t.Errorf("in incoming of tier %d after the mount: %v", tier, parts)
		}
		for name, size := range k.files(k.dataset(tier) + "/files") {
			if size != int64(len(k.want[name])) {
				k.t.Errorf("a copy of %s has %d bytes of %d", name, size, len(k.want[name]))
			}
			k.placed[name] = size
		}
	}
	return len(k.placed)
}

// verify reads n files, and checks that only those without a copy were read from the source.
func (k *killed) verify(n int) {
	k.t.Helper()
	k.shuffle()
	var opens, bytes int64
	for _, name := range k.names[:n] {
		if _, ok := k.placed[name]; !ok {
			opens++
			bytes += int64(len(k.want[name]))
		}
	}
	if err := k.read(k.names[:n], nil); err != nil {
		k.t.Error(err)
	}
	got := k.settled().Source
	if got.Opens != opens || got.Bytes != bytes {
		k.t.Errorf("reading %d files after the restart: %d opens and %d bytes at the source, want %d and %d",
			n, got.Opens, got.Bytes, opens, bytes)
	}
}

func (k *killed) shuffle() {
	k.rng.Shuffle(len(k.names), func(i, j int) { k.names[i], k.names[j] = k.names[j], k.names[i] })
}

// read reads files, one in each of the readers at a time, until one fails, and returns the error. It
// closes begun when the first is read.
func (k *killed) read(names []string, begun chan struct{}) error {
	var (
		readers sync.WaitGroup
		first   sync.Once
		errs    = make(chan error, len(k.readers))
		next    = make(chan string, len(names))
	)
	for _, name := range names {
		next <- name
	}
	close(next)
	for _, r := range k.readers {
		readers.Go(func() {
			for name := range next {
				got, err := r.read(filepath.Join(k.point, name), false)
				if err == nil && !bytes.Equal(got, k.want[name]) {
					k.t.Errorf("%s: wrong bytes", name)
				}
				if err != nil {
					errs <- err
					return
				}
				if begun != nil {
					first.Do(func() { close(begun) })
				}
			}
		})
	}
	readers.Wait()
	close(errs)
	return <-errs
}

// fillAndKill reads the whole dataset and kills the daemon 5 to 150 ms after the first file was
// read. It reports whether that was before all files were placed.
func (k *killed) fillAndKill() bool {
	k.t.Helper()
	pid := k.status().PID
	wait := time.Duration(5+k.rng.IntN(146)) * time.Millisecond
	k.shuffle()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.read(k.names, begun) }()
	select {
	case <-begun:
	case err := <-ended:
		k.t.Fatalf("reading: %v", err)
	}
	time.Sleep(wait)
	k.check(unix.Kill(pid, unix.SIGKILL))
	err := <-ended
	k.eventually("the daemon has ended", func() bool { return len(k.processes()) == 0 })
	copies := len(k.files(k.dataset(1)+"/files")) + len(k.files(k.dataset(2)+"/files"))
	if err == nil || copies == len(k.names) {
		return false
	}
	k.waited += wait
	return true
}
