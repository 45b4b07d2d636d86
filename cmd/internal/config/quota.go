package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// A Quota limits what Milkweed holds in a tier. One of the two is set.
type Quota struct {
	Bytes   int64   // at most so many bytes
	Percent float64 // at most this share of what the file system has free for us: available, and held by us already
}

// sizeForm keeps from humanize.ParseBytes what it takes and we do not mean:
// commas, which it drops, so that "1,5GiB" is 15 GiB.
var sizeForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)? ?[A-Za-z]*$`)

// ParseQuota reads "64GiB", "500MB", "1048576" or "90%".
func ParseQuota(s string) (Quota, error) {
	if share, ok := strings.CutSuffix(s, "%"); ok {
		return parsePercent(s, share)
	}
	n, err := parseSize(s)
	if err == nil && n == 0 {
		err = fmt.Errorf("%q leaves no room", s)
	}
	return Quota{Bytes: n}, err
}

// parseSize reads "64GiB", "500MB" or "1048576".
func parseSize(s string) (int64, error) {
	if !sizeForm.MatchString(s) {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size below 8 EiB", s)
	}
	return int64(n), nil
}

var percentForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)? ?$`)

func parsePercent(s, share string) (Quota, error) {
	if !percentForm.MatchString(share) {
		return Quota{}, fmt.Errorf("%q is not a percentage", s)
	}
	p, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
	switch {
	case err != nil || p > 100:
		return Quota{}, fmt.Errorf("%q is more than 100 %%", s)
	case p == 0:
		return Quota{}, fmt.Errorf("%q leaves no room", s)
	}
	return Quota{Percent: p}, nil
}

// Of returns the quota in bytes, in a file system that has room bytes for us:
// those available and those that we hold already.
func (q Quota) Of(room int64) int64 {
	if q.Percent > 0 {
		return int64(float64(room) * (q.Percent / 100))
	}
	return q.Bytes
}

// String gives text that ParseQuota takes.
func (q Quota) String() string {
	if q.Percent > 0 {
		return strconv.FormatFloat(q.Percent, 'f', -1, 64) + "%"
	}
	return formatSize(q.Bytes)
}

// formatSize gives text that parseSize takes: in the largest unit that is exact.
func formatSize(n int64) string {
	if s, ok := exactly(n, 1024, "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"); ok {
		return s
	}
	if s, ok := exactly(n, 1000, "kB", "MB", "GB", "TB", "PB", "EB"); ok {
		return s
	}
	return strconv.FormatInt(n, 10)
}

// exactly writes n in the largest unit that divides it, if one does.
func exactly(n, base int64, units ...string) (string, bool) {
	unit := ""
	for _, u := range units {
		if n == 0 || n%base != 0 {
			break
		}
		n /= base
		unit = u
	}
	return strconv.FormatInt(n, 10) + unit, unit != ""
}
