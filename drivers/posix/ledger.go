package posix

import (
	"os"
	"strings"
	"time"
)

// A ledger says which copies a power failure may have spoilt; the package
// comment explains. It is synced.json in the folder of the dataset. A value is
// never changed once it is published.
type ledger struct {
	Boot   string    `json:"boot"`           // boot in which copies were last made; "" is none that can be told
	Synced time.Time `json:"synced"`         // what was changed before is on the disk
	Clean  bool      `json:"clean"`          // and nothing was changed since
	Lost   []span    `json:"lost,omitempty"` // copies changed within are not believed
}

// A span is the time from From, and before Until.
type span struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// believes reports whether the content of a copy that was last changed at
// ctime is certain.
func (l *ledger) believes(ctime time.Time) bool {
	for _, s := range l.Lost {
		if !ctime.Before(s.From) && ctime.Before(s.Until) {
			return false
		}
	}
	return true
}

// opened is the ledger for a store that is opened at now in boot. With crashed
// it cannot have been closed in order, nor be the same boot: its file system
// went away under it.
func (l ledger) opened(boot string, now time.Time, crashed bool) ledger {
	sameBoot := boot != "" && l.Boot == boot && !crashed
	if !sameBoot {
		if !l.Clean || crashed {
			l = l.lose(now)
		}
		l.Synced = now
	}
	l.Boot, l.Clean = boot, false
	return l
}

// maxSpans keeps the file small. More make room by joining the oldest two,
// and what lies between them.
const maxSpans = 100

// lose is the ledger when all since the last sync may be spoilt.
func (l ledger) lose(now time.Time) ledger {
	lost := append(l.Lost[:len(l.Lost):len(l.Lost)], span{l.Synced, now})
	if len(lost) > maxSpans {
		lost[1].From = lost[0].From
		lost = lost[1:]
	}
	l.Lost, l.Synced = lost, now
	return l
}

// bootID is another after each boot, and "" if the kernel does not say.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
