package main

import (
	"errors"
	"fmt"
	"io"
)

// viaMilkweed is how an epoch is read that is not read straight from the source.
const viaMilkweed = "milkweed"

// A demoReport is what a demo found, which it prints as it finds it.
type demoReport struct {
	Files           int         `json:"files"`
	Bytes           int64       `json:"bytes"`
	LatencySeconds  float64     `json:"latency_seconds"`
	BandwidthPerSec int64       `json:"bandwidth_bytes_per_second"`
	Readers         int         `json:"readers"`
	Folders         []string    `json:"folders"` // what all is in
	Epochs          []demoEpoch `json:"epochs"`
	Problems        []string    `json:"problems"` // why the demo fails

	w      io.Writer
	asJSON bool
}

// A demoEpoch is one epoch, read one way.
type demoEpoch struct {
	Epoch     int              `json:"epoch"`                // from 1
	Via       string           `json:"via"`                  // "source" or "milkweed"
	Seconds   float64          `json:"seconds"`              // that the readers took
	Files     int64            `json:"files"`                // that they read
	Bytes     int64            `json:"bytes"`                // that they read
	TierBytes map[string]int64 `json:"tier_bytes,omitempty"` // bytes that each tier answered
	Source    demoSourceUse    `json:"source"`               // what the source was asked

	wrong []string
}

// demoSourceUse is what the source was asked.
type demoSourceUse struct {
	Operations int64 `json:"operations"` // of all kinds
	Opens      int64 `json:"opens"`
	Reads      int64 `json:"reads"`
	Bytes      int64 `json:"bytes"` // that it answered
}

// newDemoReport begins a report.
func newDemoReport(f *demoFlags, samples []sample, p *demoPlaces, w io.Writer) *demoReport {
	r := &demoReport{
		Files: len(samples), Bytes: totalSize(samples),
		LatencySeconds: f.speed.latency.Seconds(), BandwidthPerSec: f.speed.bandwidth,
		Readers: readerCount, Folders: p.folders(), Problems: []string{},
		w: w, asJSON: f.asJSON,
	}
	if !r.asJSON {
		r.begin(f, p)
	}
	return r
}

// begin says what is read, from what, by whom.
func (r *demoReport) begin(f *demoFlags, p *demoPlaces) {
	ram := "in " + shm
	if !p.inMemory() {
		ram = "on disk, for want of room in " + shm
	}
	fmt.Fprintf(r.w, `dataset   %s, %s: %s small, %s large of %s
source    a stand-in for a parallel file system: %v for each operation,
          %s/s for all readers together
milkweed  a ram tier of %s %s,
          and an ssd tier for the rest in %s
readers   %d processes, which list the dataset and read whole files, %s at a time;
          neither mount keeps pages from one epoch to the next

`,
		files(int64(r.Files)), decimal(r.Bytes), count(int64(f.files)), count(int64(f.large)), decimal(largeSize),
		f.speed.latency, decimal(f.speed.bandwidth),
		decimal(p.ramQuota), ram, text(p.dir),
		r.Readers, size(readSize))
}

const demoRow = "%-5v  %-8s  %8s  %6s  %8s  %8s  %10s  %11s\n"

// add adds an epoch, and prints it.
func (r *demoReport) add(e demoEpoch) error {
	r.Epochs = append(r.Epochs, e)
	r.Problems = append(r.Problems, r.problems(e)...)
	if r.asJSON {
		return nil
	}
	if len(r.Epochs) == 1 {
		fmt.Fprintf(r.w, demoRow, "EPOCH", "VIA", "TIME", "MB/S", "RAM", "SSD", "SOURCE OPS", "SOURCE READ")
	}
	tier := func(name string) string {
		if n, ok := e.TierBytes[name]; ok {
			return decimal(n)
		}
		return "-"
	}
	_, err := fmt.Fprintf(r.w, demoRow, e.Epoch, e.Via, fmt.Sprintf("%.2f s", e.Seconds), rate(e.Bytes, e.Seconds),
		tier("ram"), tier("ssd"), count(e.Source.Operations), decimal(e.Source.Bytes))
	return err
}

// maxOnce is how much more than the dataset the source may give while each byte
// is read once: the kernel reads ahead, and a file that ends in the middle of a
// page is asked for its end.
const maxOnce = 1.02

// problems says what is wrong with an epoch.
func (r *demoReport) problems(e demoEpoch) []string {
	var problems []string
	say := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("epoch %d by way of %s: ", e.Epoch, e.Via)+fmt.Sprintf(format, args...))
	}
	for _, w := range e.wrong {
		say("%s", w)
	}
	if e.Bytes != r.Bytes && len(e.wrong) == 0 {
		say("%d bytes were read, and the dataset has %d", e.Bytes, r.Bytes)
	}
	switch read := e.Source.Bytes; {
	case e.Via == sourceLevel:
	case e.Epoch == 1 && float64(read) > maxOnce*float64(r.Bytes):
		say("the source gave %d bytes of a dataset of %d", read, r.Bytes)
	case e.Epoch > 1 && e.Source.Reads > 0:
		say("the source was read from %d times, and all is in the tiers", e.Source.Reads)
	}
	return problems
}

// finish ends the report, and returns an error if there are problems.
func (r *demoReport) finish() error {
	var err error
	if r.asJSON {
		err = printJSON(r.w, r)
	} else {
		_, err = fmt.Fprint(r.w, "\n", r.conclusion())
	}
	errs := []error{err}
	for _, p := range r.Problems {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(errs...)
}

// conclusion says in numbers what Milkweed changed.
func (r *demoReport) conclusion() string {
	epochs := len(r.Epochs) / 2
	straight, milkweed := r.sum(sourceLevel, 1, epochs), r.sum(viaMilkweed, 1, epochs)
	share := func(from, to int) string {
		return fmt.Sprintf("%.0f%%", 100*r.sum(viaMilkweed, from, to).Seconds/r.sum(sourceLevel, from, to).Seconds)
	}
	line := fmt.Sprintf("The source gave %.2f times the dataset straight and %.2f times through Milkweed,\nwhich took %s of the time",
		float64(straight.Source.Bytes)/float64(r.Bytes), float64(milkweed.Source.Bytes)/float64(r.Bytes), share(1, epochs))
	if epochs > 1 {
		line += fmt.Sprintf(": %s in the first epoch, %s after it", share(1, 1), share(2, epochs))
	}
	return line + ".\n"
}

// sum adds up epochs that were read one way.
func (r *demoReport) sum(via string, from, to int) demoEpoch {
	var all demoEpoch
	for _, e := range r.Epochs {
		if e.Via == via && from <= e.Epoch && e.Epoch <= to {
			all.Seconds += e.Seconds
			all.Source.Bytes += e.Source.Bytes
		}
	}
	return all
}
