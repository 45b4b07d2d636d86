package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A reader is a process, as a worker of a data loader is. For each share that it
// is given on its standard input it writes tallies to its standard output, the
// last with Done.

const (
	readerCount = 4
	readSize    = 256 << 10              // bytes that a reader asks for at a time
	tallyEvery  = 100 * time.Millisecond // time between tallies
	maxWrong    = 5                      // files that a reader names
)

// A share is what one reader reads of an epoch, in this order.
type share struct {
	Folder  string   `json:"folder"`
	Samples []sample `json:"samples"`
}

// A tally is what was read of a share.
type tally struct {
	Files int64    `json:"files"`
	Bytes int64    `json:"bytes"`
	Wrong []string `json:"wrong,omitempty"` // what could not be read, or not as it was written
	Done  bool     `json:"done,omitempty"`
}

func newDemoReader() *cobra.Command {
	return &cobra.Command{
		Use:     "read",
		Short:   "Read files and check their content",
		Long:    "Read is a reader that `milkweed demo` starts.",
		Example: `  echo '{"folder": "/mnt", "samples": [{"name": "a", "size": 0, "crc": 0}]}' | milkweed demo read`,
		Hidden:  true,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return readShares(c.InOrStdin(), c.OutOrStdout())
		},
	}
}

// readShares is the process.
func readShares(in io.Reader, out io.Writer) error {
	shares, tallies := json.NewDecoder(in), json.NewEncoder(out)
	buf := make([]byte, readSize)
	for {
		var s share
		if err := shares.Decode(&s); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := list(s.Folder); err != nil {
			return err
		}
		var t tally
		said := time.Now()
		for _, sample := range s.Samples {
			err := sample.read(s.Folder, buf, func(n int) error {
				t.Bytes += int64(n)
				if time.Since(said) < tallyEvery {
					return nil
				}
				said = time.Now()
				return tallies.Encode(t)
			})
			t.Files++
			if err != nil && len(t.Wrong) < maxWrong {
				t.Wrong = append(t.Wrong, err.Error())
			}
		}
		t.Done = true
		if err := tallies.Encode(t); err != nil {
			return err
		}
	}
}

// list lists the folder and all below it, as a job does to find out what there
// is to read.
func list(folder string) error {
	return filepath.WalkDir(folder, func(_ string, _ fs.DirEntry, err error) error { return err })
}

// read reads the file once, from its beginning to its end, compares it with what
// was written, and has the kernel drop it. It calls progress after each read.
func (s sample) read(folder string, buf []byte, progress func(n int) error) error {
	f, err := os.Open(filepath.Join(folder, s.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	var (
		size int64
		sum  uint32
	)
	for {
		n, err := f.Read(buf)
		size += int64(n)
		sum = crc32.Update(sum, crcTable, buf[:n])
		if perr := progress(n); perr != nil {
			return perr
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if size != s.Size || sum != s.CRC {
		return fmt.Errorf("%s: %d bytes with checksum %08x, where %d with %08x were written", f.Name(), size, sum, s.Size, s.CRC)
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// demoReaders are the readers as the demo sees them.
type demoReaders []demoReader

type demoReader struct{ *peer }

// startReaders starts the readers, which ctx ends.
func startReaders(ctx context.Context, stderr io.Writer) (demoReaders, error) {
	var readers demoReaders
	for range readerCount {
		p, err := startPeer(self(ctx, "demo", "read"), stderr)
		if err != nil {
			readers.stop()
			return nil, err
		}
		readers = append(readers, demoReader{p})
	}
	return readers, nil
}

// stop ends the readers. They have no open file when it returns.
func (rs demoReaders) stop() {
	for _, r := range rs {
		r.in.Close() // all at once, before any is waited for
	}
	for _, r := range rs {
		r.peer.stop()
	}
}

// read has the readers read the samples in a folder, each every fourth, and
// calls progress with what they have read together.
func (rs demoReaders) read(folder string, samples []sample, progress func(tally)) (tally, error) {
	shares := make([]share, len(rs))
	for i, s := range samples {
		to := &shares[i%len(rs)]
		to.Folder, to.Samples = folder, append(to.Samples, s)
	}
	type report struct {
		reader int
		tally
		err error
	}
	reports := make(chan report)
	for i, r := range rs {
		go r.read(shares[i], func(t tally, err error) { reports <- report{i, t, err} })
	}
	latest := make([]tally, len(rs))
	var errs []error
	for reading := len(rs); reading > 0; {
		r := <-reports
		if r.err != nil {
			errs = append(errs, fmt.Errorf("reader %d: %w", r.reader+1, r.err))
		} else {
			latest[r.reader] = r.tally
		}
		if r.Done || r.err != nil {
			reading--
		}
		progress(sum(latest))
	}
	return sum(latest), errors.Join(errs...)
}

// read has one reader read its share, and calls f with each tally. The last call
// is with Done or with an error.
func (r demoReader) read(s share, f func(tally, error)) {
	err := json.NewEncoder(r.in).Encode(s)
	for {
		var t tally
		if err == nil {
			err = r.out.Decode(&t)
		}
		f(t, err)
		if t.Done || err != nil {
			return
		}
	}
}

func sum(tallies []tally) tally {
	var all tally
	for _, t := range tallies {
		all.Files += t.Files
		all.Bytes += t.Bytes
		all.Wrong = append(all.Wrong, t.Wrong...)
	}
	return all
}
