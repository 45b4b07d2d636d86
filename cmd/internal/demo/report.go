package demo

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
	"github.com/milkweedfs/milkweed/cmd/internal/sandbox"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
)

// The two ways in which an epoch is read.
const (
	ViaSource   = "source"
	ViaMilkweed = "milkweed"
)

// The names of the tiers.
const (
	ramTier = "ram"
	ssdTier = "ssd"
)

// A Report is the result of a demo.
type Report struct {
	Files           int      `json:"files"`
	Bytes           int64    `json:"bytes"`
	LatencySeconds  float64  `json:"latency_seconds"`
	BandwidthPerSec int64    `json:"bandwidth_bytes_per_second"`
	Readers         int      `json:"readers"`
	Folders         []string `json:"folders"` // temporary folders
	Epochs          []Epoch  `json:"epochs"`
	Problems        []string `json:"problems"` // why the demo fails

	out io.Writer
}

// An Epoch is one epoch, read in one way.
type Epoch struct {
	Epoch     int              `json:"epoch"` // from 1
	Via       string           `json:"via"`   // ViaSource or ViaMilkweed
	Seconds   float64          `json:"seconds"`
	Files     int64            `json:"files"`
	Bytes     int64            `json:"bytes"`
	TierBytes map[string]int64 `json:"tier_bytes,omitempty"` // bytes read from each tier
	Source    simpfs.Use       `json:"source"`               // operations of the source

	wrong []string // files with errors
}

func newReport(c *Config, files []dataset.File, box *sandbox.Sandbox) *Report {
	return &Report{
		Files: len(files), Bytes: dataset.Size(files),
		LatencySeconds: c.Source.Latency.Seconds(), BandwidthPerSec: c.Source.BytesPerSecond,
		Readers: readerCount, Folders: box.Folders(), Problems: []string{},
		out: c.Out,
	}
}

// begin prints the dataset, the source, the tiers and the readers.
func (r *Report) begin(c *Config, box *sandbox.Sandbox, ramQuota int64) error {
	ram := "in " + filepath.Dir(box.Memory)
	if !box.InMemory() {
		ram = "on disk, because " + sandbox.SHM + " has too little space"
	}
	_, err := fmt.Fprintf(r.out, `dataset   %s files, %s: %s small, %s large of %s
source    a simulated parallel file system (PFS): %v for each operation,
          %s/s for all readers together
milkweed  a ram tier of %s %s,
          and an ssd tier for the rest in %s
readers   %d processes, which list the dataset and read whole files, %s at a time;
          the page cache keeps nothing of either mount from one epoch to the next

`,
		count(r.Files), size(r.Bytes), count(c.SmallFiles), count(c.LargeFiles), size(largeSize),
		c.Source.Latency, size(c.Source.BytesPerSecond),
		size(ramQuota), ram, box.Root,
		r.Readers, humanize.IBytes(reader.BlockSize))
	return err
}

const row = "%-5v  %-8s  %8s  %6s  %8s  %8s  %10s  %11s\n"

// add adds an epoch and prints its line of the table.
func (r *Report) add(e Epoch) error {
	r.Epochs = append(r.Epochs, e)
	r.Problems = append(r.Problems, r.problems(e)...)
	if len(r.Epochs) == 1 {
		fmt.Fprintf(r.out, row, "EPOCH", "VIA", "TIME", "MB/S", "RAM", "SSD", "SOURCE OPS", "SOURCE READ")
	}
	tier := func(name string) string {
		if n, ok := e.TierBytes[name]; ok {
			return size(n)
		}
		return "-"
	}
	rate := strconv.FormatFloat(float64(e.Bytes)/e.Seconds/1e6, 'f', 0, 64)
	_, err := fmt.Fprintf(r.out, row, e.Epoch, e.Via, fmt.Sprintf("%.2f s", e.Seconds), rate,
		tier(ramTier), tier(ssdTier), humanize.Comma(e.Source.Operations), size(e.Source.Bytes))
	return err
}

// maxOnce is the maximum ratio of bytes read from the source to bytes of the
// dataset if each byte is read once. It is above 1 because of the kernel's
// readahead and of partial pages at the ends of files.
const maxOnce = 1.02

// problems lists the expectations that an epoch does not meet.
func (r *Report) problems(e Epoch) []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("epoch %d via %s: ", e.Epoch, e.Via)+fmt.Sprintf(format, args...))
	}
	for _, w := range e.wrong {
		add("%s", w)
	}
	if e.Bytes != r.Bytes && len(e.wrong) == 0 {
		add("%d bytes were read of a dataset of %d", e.Bytes, r.Bytes)
	}
	switch read := e.Source.Bytes; {
	case e.Via == ViaSource:
	case e.Epoch == 1 && float64(read) > maxOnce*float64(r.Bytes):
		add("%d bytes were read from the source, for a dataset of %d", read, r.Bytes)
	case e.Epoch > 1 && e.Source.Reads > 0:
		add("%d reads reached the source, although the tiers hold the whole dataset", e.Source.Reads)
	}
	return problems
}

// Err returns an error with a line for each problem, or nil if there is none.
func (r *Report) Err() error {
	var errs []error
	for _, p := range r.Problems {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(errs...)
}

// conclude prints the effect of Milkweed in numbers.
func (r *Report) conclude() error {
	epochs := len(r.Epochs) / 2
	source, milkweed := r.sum(ViaSource, 1, epochs), r.sum(ViaMilkweed, 1, epochs)
	share := func(from, to int) string {
		return fmt.Sprintf("%.0f%%", 100*r.sum(ViaMilkweed, from, to).Seconds/r.sum(ViaSource, from, to).Seconds)
	}
	line := fmt.Sprintf("Bytes read from the source: %.2f times the dataset without Milkweed, %.2f times with it.\n"+
		"Time with Milkweed: %s of the time without it",
		float64(source.Source.Bytes)/float64(r.Bytes), float64(milkweed.Source.Bytes)/float64(r.Bytes), share(1, epochs))
	if epochs > 1 {
		line += fmt.Sprintf(" (%s in the first epoch, %s in the later ones)", share(1, 1), share(2, epochs))
	}
	_, err := fmt.Fprintf(r.out, "\n%s.\n", line)
	return err
}

// sum adds the times and the source bytes of a range of epochs.
func (r *Report) sum(via string, from, to int) Epoch {
	var all Epoch
	for _, e := range r.Epochs {
		if e.Via == via && from <= e.Epoch && e.Epoch <= to {
			all.Seconds += e.Seconds
			all.Source.Bytes += e.Source.Bytes
		}
	}
	return all
}

// size formats a number of bytes in decimal units, as bandwidths have them.
func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

func count(n int) string { return humanize.Comma(int64(n)) }
