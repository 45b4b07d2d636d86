package posix

import (
	"os"
	"strings"
	"time"
)

// A syncRecord describes which copies a power failure may have damaged; see the package
// comment. It is stored as synced.json in the folder of the dataset. A value is immutable
// once it is published.
type syncRecord struct {
	Boot   string    `json:"boot"`           // boot in which copies were last written; "" if unknown
	Synced time.Time `json:"synced"`         // changes before this time are on the disk
	Clean  bool      `json:"clean"`          // there were no changes after Synced
	Lost   []span    `json:"lost,omitempty"` // copies changed in these spans are not trusted
}

// A span is the time from From, inclusive, to Until, exclusive.
type span struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// trusts reports whether a copy that last changed at ctime has its content.
func (r *syncRecord) trusts(ctime time.Time) bool {
	for _, s := range r.Lost {
		if !ctime.Before(s.From) && ctime.Before(s.Until) {
			return false
		}
	}
	return true
}

// opened returns the record of a store that is opened at now in boot. If crashed, the file
// system of the store disappeared while the store was open: the store was not closed in
// order, and even changes of the same boot may be lost.
func (r syncRecord) opened(boot string, now time.Time, crashed bool) syncRecord {
	sameBoot := boot != "" && r.Boot == boot && !crashed
	if !sameBoot {
		if !r.Clean || crashed {
			r = r.lose(now)
		}
		r.Synced = now
	}
	r.Boot, r.Clean = boot, false
	return r
}

// maxSpans bounds the size of the file. If there are more, the oldest two are merged,
// together with the time between them.
const maxSpans = 100

// lose returns the record after which no change since the last sync is trusted.
func (r syncRecord) lose(now time.Time) syncRecord {
	lost := append(r.Lost[:len(r.Lost):len(r.Lost)], span{r.Synced, now})
	if len(lost) > maxSpans {
		lost[1].From = lost[0].From
		lost = lost[1:]
	}
	r.Lost, r.Synced = lost, now
	return r
}

// bootID identifies the current boot. It is "" if the kernel does not provide it.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
