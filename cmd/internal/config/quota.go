package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// A Quota limits the size of the copies in a tier. Exactly one field is set.
type Quota struct {
	Bytes   int64   // the limit in bytes
	Percent float64 // the limit as a percentage of the free space and the space that the copies occupy
}

// Patterns of a size and of the number of a percentage. That of a size is stricter than
// humanize.ParseBytes, which ignores commas and so would read "1,5GiB" as 15 GiB.
const (
	sizeText    = `[0-9]+(\.[0-9]+)? ?[A-Za-z]*`
	percentText = `[0-9]+(\.[0-9]+)? ?`
)

var (
	sizePattern    = regexp.MustCompile("^" + sizeText + "$")
	percentPattern = regexp.MustCompile("^" + percentText + "$")
)

// ParseQuota reads "64GiB", "500MB", "1048576" or "90%".
func ParseQuota(s string) (Quota, error) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		return parsePercent(s, number)
	}
	n, err := parseSize(s)
	if err == nil && n == 0 {
		err = fmt.Errorf("%q is not above 0", s)
	}
	return Quota{Bytes: n}, err
}

// ParseRate reads a number of bytes per second, such as "50MB"; "" is 0, no limit.
func ParseRate(s string) (int64, error) {
	var v bandwidthValue
	err := v.Set(s)
	return int64(v), err
}

// parseSize reads "64GiB", "500MB" or "1048576".
func parseSize(s string) (int64, error) {
	if !sizePattern.MatchString(s) {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size below 8 EiB", s)
	}
	return int64(n), nil
}

// parsePercent reads the percentage s. Number is s without its percent sign.
func parsePercent(s, number string) (Quota, error) {
	if !percentPattern.MatchString(number) {
		return Quota{}, fmt.Errorf("%q is not a percentage", s)
	}
	p, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	switch {
	case err != nil || p > 100:
		return Quota{}, fmt.Errorf("%q is more than 100 %%", s)
	case p == 0:
		return Quota{}, fmt.Errorf("%q is not above 0", s)
	}
	return Quota{Percent: p}, nil
}

// Of returns the quota in bytes. Usable is the free space of the file system plus
// the space that the copies occupy already.
func (q Quota) Of(usable int64) int64 {
	if q.Percent > 0 {
		return int64(float64(usable) * (q.Percent / 100))
	}
	return q.Bytes
}

// String returns q in a form that ParseQuota accepts.
func (q Quota) String() string {
	if q.Percent > 0 {
		return strconv.FormatFloat(q.Percent, 'f', -1, 64) + "%"
	}
	return formatSize(q.Bytes)
}

// formatSize returns n in a form that parseSize accepts, in the largest unit that
// is exact.
func formatSize(n int64) string {
	if s, ok := formatExact(n, 1024, "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"); ok {
		return s
	}
	if s, ok := formatExact(n, 1000, "kB", "MB", "GB", "TB", "PB", "EB"); ok {
		return s
	}
	return strconv.FormatInt(n, 10)
}

// formatExact returns n in the largest of the units that divides it. Each unit is
// base times the one before. It reports false if no unit divides n.
func formatExact(n, base int64, units ...string) (string, bool) {
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
