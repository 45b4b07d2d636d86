package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// fillLevel is the name of copies in flight as a level.
const fillLevel = control.FillLevel

// waits converts w. The tiers come last.
func (d *daemon) waits(w placement.Waits) []control.Wait {
	all := []control.Wait{
		wait(sourceLevel, control.Latency, w.Latency),
		wait(sourceLevel, control.Bandwidth, w.Bandwidth),
		wait(fillLevel, control.FillCause, w.Fill),
	}
	if d.peers.node != nil {
		all = append(all, wait(peersLevel, control.PeersCause, w.Peers))
	}
	for i, t := range d.levels.Tiers() {
		all = append(all, wait(t.Name(), control.TierCause, w.Tiers[i]))
	}
	return all
}

func wait(level, cause string, w placement.Wait) control.Wait {
	return control.Wait{Level: level, Cause: cause, Waits: w.Count, Seconds: w.Time.Seconds()}
}

// epoch converts e.
func (d *daemon) epoch(e placement.Epoch) control.Epoch {
	all := control.Epoch{Began: e.Began, Seconds: e.Took.Seconds(), Ended: e.Ended, Mixed: e.Mixed, Files: e.Files}
	add := func(level string, o, direct placement.Opens) {
		all.Opens = append(all.Opens, control.EpochOpens{Level: level, Opens: o.Files, Bytes: o.Bytes, Read: o.Read, Passthrough: direct.Bytes})
	}
	add(fillLevel, e.Fills, placement.Opens{})
	if d.peers.node != nil {
		add(peersLevel, e.Peers, placement.Opens{})
	}
	for l := range len(d.levels.Tiers()) + 1 {
		add(d.levels.Name(tiers.Level(l)), e.Opens[l], e.Direct[l])
	}
	for _, w := range d.waits(e.Waited) {
		all.Waits = append(all.Waits, control.EpochWait(w))
	}
	return all
}

// shownEpochs is the number of epochs that the table of printWaits has.
const shownEpochs = 4

// printWaits prints how long readers waited in the last epochs, and since the start of the daemon.
func printWaits(w io.Writer, s control.Status) {
	causes := []string{control.Latency, control.Bandwidth, control.FillCause, control.TierCause}
	columns, words := "LATENCY\tBANDWIDTH\tFILL\tTIERS", "LATENCY, BANDWIDTH, FILL and TIERS"
	if s.Peers != nil {
		causes = append(causes, control.PeersCause)
		columns, words = columns+"\tPEERS", "LATENCY, BANDWIDTH, FILL, TIERS and PEERS"
	}
	fmt.Fprintln(w, "\nEPOCH\tBEGAN\tTOOK\tFILES\tBYTES READ\t"+columns)
	mixed := false
	for i := max(0, len(s.Epochs)-shownEpochs); i < len(s.Epochs); i++ {
		e := s.Epochs[i]
		mixed = mixed || e.Mixed
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", epochName(s, i), e.Began.Local().Format(time.TimeOnly),
			rounded(e.Seconds), count(e.Files), bytesRead(e), waited(e.Waits, causes))
	}
	var all []control.EpochWait
	for _, wait := range s.Waits {
		all = append(all, control.EpochWait(wait))
	}
	fmt.Fprintf(w, "all\t\t\t\t\t%s\n", waited(all, causes))
	fmt.Fprintln(w, words+" are times that readers waited, summed over the readers.")
	if mixed {
		fmt.Fprintln(w, "mixed: not recognizable as an epoch. Files were opened again before others were opened.")
	}
}

// epochName returns the number of epoch i of the list, or why it has none.
func epochName(s control.Status, i int) string {
	if s.Epochs[i].Mixed {
		return "mixed"
	}
	name := count(s.EpochNumber(i))
	if !s.Epochs[i].Ended {
		name += ", now"
	}
	return name
}

// bytesRead lists what readers got from the daemon in an epoch, by level, and the sizes of the files that
// they opened in passthrough.
func bytesRead(e control.Epoch) string {
	var parts []string
	for _, o := range e.Opens {
		if o.Read > 0 {
			parts = append(parts, size(o.Read)+" "+o.Level)
		}
		if o.Passthrough > 0 {
			parts = append(parts, size(o.Passthrough)+" opened in "+o.Level)
		}
	}
	return strings.Join(parts, ", ")
}

// waited returns the columns of printWaits for waits, one for each cause.
func waited(all []control.EpochWait, causes []string) string {
	var columns []string
	for _, cause := range causes {
		sum := 0.0
		for _, w := range all {
			if w.Cause == cause {
				sum += w.Seconds
			}
		}
		columns = append(columns, rounded(sum))
	}
	return strings.Join(columns, "\t")
}

// rounded formats a duration with a precision of about a hundredth.
func rounded(seconds float64) string {
	d, unit := time.Duration(seconds*float64(time.Second)), time.Microsecond
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}
