package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["crowd"] = readCrowd }

// readCrowd reads every file of some folders, all at the same time. After each it prints its hash.
func readCrowd(folders []string) error {
	var (
		readers sync.WaitGroup
		mu      sync.Mutex
		errs    []error
	)
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			readers.Go(func() {
				data, err := readSmall(filepath.Join(folder, e.Name()))
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				fmt.Println(filepath.Base(folder)+"/"+e.Name(), hash(data))
			})
		}
	}
	readers.Wait()
	return errors.Join(errs...)
}

// readSmall reads a file in small pieces, as most programs do. The kernel then reads ahead by
// background requests, whatever its threshold of congestion.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// A waitingReads counts the reads that wait, in all modes.
type waitingReads struct {
	fs.Opener
	n atomic.Int64
}

func (w *waitingReads) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	obj, err := w.Opener.Open(ctx, e)
	if err != nil {
		return nil, err
	}
	return &countedObject{obj, w}, nil
}

func (w *waitingReads) ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error) {
	w.n.Add(1)
	defer w.n.Add(-1)
	return w.Opener.(fs.Reader).ReadAt(ctx, e, p, off)
}

func (w *waitingReads) SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error) {
	return w.Opener.(fs.Reader).SpliceDescriptor(e)
}

// A countedObject has the capabilities of the inner one: drivers.As unwraps it.
type countedObject struct {
	drivers.Object
	w *waitingReads
}

func (o *countedObject) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	o.w.n.Add(1)
	defer o.w.n.Add(-1)
	return o.Object.ReadAt(ctx, p, off)
}

func (o *countedObject) Unwrap() drivers.Object { return o.Object }

// A hungStack is a stack of which the files in hung/ hang at the source, those in placed/ are
// placed, and those in new*/ were never read.
type hungStack struct {
	*stack
	reads *waitingReads
}

func newHungStack(t testing.TB, mode fs.Mode, hung, size int) *hungStack {
	reads := &waitingReads{}
	wrap := func(o fs.Opener) fs.Opener { reads.Opener = o; return reads }
	s := newStack(t, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}, mode: mode, wrap: wrap}, func(source string) {
		for i := range hung {
			write(t, source, fmt.Sprintf("hung/%04d", i), size, uint64(i))
		}
		for _, dir := range []string{"placed", "new1", "new2"} {
			for i := range 20 {
				write(t, source, fmt.Sprintf("%s/%d", dir, i), 200_000, uint64(i))
			}
		}
	})
	child(t, "crowd", s.in("placed"))
	s.settled()
	s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Name: "hung/*", Hang: true})
	return &hungStack{s, reads}
}

// hang starts a child that reads all files in hung/, and waits until 64 of its readers wait.
func (s *hungStack) hang() *exec.Cmd {
	s.t.Helper()
	cmd := childCommand("crowd", s.in("hung"))
	s.check(cmd.Start())
	s.eventually("64 readers wait", func() bool { return s.reads.n.Load() >= 64 })
	return cmd
}

// wantReads reads the files of some folders in a child, which must not take long.
func (s *hungStack) wantReads(folders ...string) {
	s.t.Helper()
	for i, f := range folders {
		folders[i] = s.in(f)
	}
	cmd := childCommand("crowd", folders...)
	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("read %q: %v\n%s", folders, err, out)
	}
}

// Readers for which the source hangs hold back neither reads of placed files that are not in the
// page cache nor first reads of other files. Readers that are killed leave no request behind.
func TestHungReadersHoldBackNobody(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newHungStack(t, mode, 100, 300_000)
		readers := s.hang()
		child(t, "forget", s.in("placed"))
		s.wantReads("placed", "new1")
		readers.Process.Kill()
		readers.Wait()
		child(t, "forget", s.in("placed"))
		s.wantReads("placed", "new2")
		s.eventually("no read waits", func() bool { return s.reads.n.Load() == 0 })
		s.from.Clear()
		s.epoch(1)
		if got, want := s.from.Bytes(drivertest.OpRead), int64(100*300_000+60*200_000); got != want {
			t.Errorf("bytes read from the source: got %d, want %d", got, want)
		}
	})
}

// The same holds if more readers hang than the kernel has background requests. After the hang they
// get their bytes, and no error.
func TestMoreHungReadersThanBackgroundRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers that hang")
	}
	t.Parallel()
	s := newHungStack(t, fs.Cached, 1200, 50_000)
	readers := childCommand("crowd", s.in("hung"))
	var out bytes.Buffer
	readers.Stdout, readers.Stderr = &out, &out
	s.check(readers.Start())
	s.eventually("most readers wait", func() bool { return s.reads.n.Load() >= 1000 })
	child(t, "forget", s.in("placed"))
	s.wantReads("placed", "new1")
	s.from.Clear()
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
	got, want := strings.Split(out.String(), "\n"), strings.Split(child(t, "crowd", filepath.Join(s.source, "hung")), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got other bytes than the source's, or errors:\n%s", out.String())
	}
}
