package placement

import (
	"sync"
	"time"
)

// A ScrubReport is the state of a scrub, or its result. The tags are those of
// tiers.TierCounters.
//
// When the scrub has ended, CopiesFound is the sum of CopiesRight, CopiesCorrupt, CopiesFailed
// and CopiesGone, unless it was stopped or has skipped a tier.
type ScrubReport struct {
	Path    string    `json:"path" help:"The directory or file whose copies are verified. \".\" is the whole dataset."`
	Started time.Time `json:"started" help:"When the scrub began."`
	Seconds float64   `json:"elapsed_seconds" help:"Time since the scrub began, or how long it took."`
	Ended   bool      `json:"ended" help:"Whether the scrub has ended."`
	Stopped bool      `json:"stopped" help:"Whether the scrub was stopped before it had verified all copies."`

	CopiesExpected int64 `json:"copies_expected" help:"Copies in the tiers when the scrub began. 0 if a part of the dataset is verified."`
	BytesExpected  int64 `json:"bytes_expected" help:"Bytes that these copies occupy."`
	CopiesFound    int64 `json:"copies_found" help:"Copies found so far."`
	BytesFound     int64 `json:"bytes_found" help:"Sizes of the copies found so far."`
	CopiesRight    int64 `json:"copies_right" help:"Copies that have the content that was written."`
	BytesRead      int64 `json:"bytes_read" help:"Bytes that were read and compared with their checksums."`
	CopiesCorrupt  int64 `json:"copies_corrupt" help:"Copies whose content is not what was written. They were removed."`
	BytesCorrupt   int64 `json:"bytes_corrupt" help:"Sizes of the corrupt copies."`
	CopiesFailed   int64 `json:"copies_failed" help:"Copies that could not be read, or were corrupt and could not be removed."`
	CopiesGone     int64 `json:"copies_gone" help:"Copies that were removed before they were verified."`

	Refetched      int64 `json:"refetched" help:"Files that were copied again after their copy was found to be corrupt. Files whose attributes are not cached are copied when they are next opened."`
	RefetchFailed  int64 `json:"refetch_failed" help:"Files that could not be copied again now. A job that opens them reads the source."`
	RefetchPending int64 `json:"refetch_pending" help:"Files that are being copied again."`

	Skipped []ScrubSkip  `json:"skipped_tiers,omitempty" help:"Tiers that were not verified to the end."`
	Errors  []ScrubError `json:"errors,omitempty" help:"The first copies that were corrupt or could not be read."`
}

// A ScrubSkip is a tier that a scrub did not verify to the end.
type ScrubSkip struct {
	Tier   string `json:"tier" help:"Name of the tier."`
	Reason string `json:"reason" help:"Why it was not verified."`
}

// A ScrubError is a copy that was corrupt or could not be read.
type ScrubError struct {
	Path    string `json:"path" help:"The file, relative to the mount point."`
	Tier    string `json:"tier" help:"Name of the tier."`
	Corrupt bool   `json:"corrupt" help:"Whether the copy was corrupt."`
	Error   string `json:"error" help:"What was wrong."`
}

// maxScrubErrors bounds ScrubReport.Errors.
const maxScrubErrors = 10

// add adds an error, unless there are many.
func (r *ScrubReport) add(e ScrubError) {
	if len(r.Errors) < maxScrubErrors {
		r.Errors = append(r.Errors, e)
	}
}

// Clean reports whether the scrub has verified all copies, and has found that all are right.
func (r *ScrubReport) Clean() bool {
	return r.Ended && !r.Stopped && r.CopiesCorrupt == 0 && r.CopiesFailed == 0 && len(r.Skipped) == 0
}

// ScrubCounters count what all scrubs have done since the daemon started. They only grow. The
// tags are those of tiers.TierCounters.
type ScrubCounters struct {
	Scrubs    int64 `json:"scrubs" metric:"scrubs_total" help:"Scrubs that have ended."`
	Right     int64 `json:"copies_right" metric:"scrub_copies_total" labels:"result=right" help:"Copies that had the content that was written." family:"Copies verified by scrubs, by result."`
	Corrupt   int64 `json:"copies_corrupt" metric:"scrub_copies_total" labels:"result=corrupt" help:"Copies whose content was not what was written."`
	Failed    int64 `json:"copies_failed" metric:"scrub_copies_total" labels:"result=failed" help:"Copies that could not be read, or were corrupt and could not be removed."`
	Bytes     int64 `json:"bytes_read" metric:"scrub_read_bytes_total" help:"Bytes that scrubs have read from the tiers."`
	Refetched int64 `json:"refetched" metric:"scrub_refetched_files_total" help:"Files that were copied again after a scrub had removed their copy."`
}

// ScrubStats describes the scrubs of a handler at one moment.
type ScrubStats struct {
	ScrubCounters

	InProgress bool         `json:"in_progress" metric:"scrub_in_progress" help:"Whether a scrub is in progress."`
	LastEnd    int64        `json:"last_end_unix_seconds" metric:"scrub_last_end_timestamp_seconds" help:"When the last scrub of the whole dataset ended that was not stopped, in seconds since 1970. 0 if there was none since the start of the daemon."`
	Current    *ScrubReport `json:"current,omitempty" help:"The scrub in progress."`
	Last       *ScrubReport `json:"last,omitempty" help:"The last scrub that has ended."`
}

// scrubs is what a handler knows about its scrubs. One is in progress at a time.
type scrubs struct {
	counters ScrubCounters // updated atomically

	mu      sync.Mutex // guards the following
	current *scrub
	last    *ScrubReport
	lastEnd time.Time // of the last complete scrub of the whole dataset
}

// begin makes s the scrub in progress, unless there is one.
func (all *scrubs) begin(s *scrub) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.current != nil {
		return false
	}
	all.current = s
	return true
}

// end ends the scrub in progress, whose result is r.
func (all *scrubs) end(r ScrubReport) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.current, all.last = nil, &r
	if r.Path == "." && !r.Stopped {
		all.lastEnd = time.Now()
	}
}
