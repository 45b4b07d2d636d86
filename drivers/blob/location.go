package blob

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Location says where a dataset is, and how to get there.
type Location struct {
	Scheme string // "s3", "gs" or "azblob"
	Bucket string // or container
	Prefix string // what all keys begin with: "" or something that ends in "/"

	// What the query of the URL may say. Credentials are not among it.
	Region    string        // s3: of the bucket; "" leaves it to the environment
	Endpoint  string        // URL of a server that is not the vendor's own
	PathStyle bool          // s3: the bucket is in the path and not in the name of the host
	Account   string        // azblob: the storage account; "" leaves it to the environment
	Profile   string        // s3: of the shared configuration; "" leaves it to the environment
	Anonymous bool          // requests are not signed
	Hedge     time.Duration // a read that has not begun after so long is asked for once more; 0 for never
}

// options are the names of what the query may say, and what they set.
var options = map[string]func(l *Location, value string) error{
	"region":     func(l *Location, v string) error { l.Region = v; return only(l, "s3") },
	"profile":    func(l *Location, v string) error { l.Profile = v; return only(l, "s3") },
	"path_style": func(l *Location, v string) error { return errors.Join(parseBool(&l.PathStyle, v), only(l, "s3")) },
	"account":    func(l *Location, v string) error { l.Account = v; return only(l, "azblob") },
	"anonymous":  func(l *Location, v string) error { return parseBool(&l.Anonymous, v) },
	"endpoint":   setEndpoint,
	"hedge":      setHedge,
}

func only(l *Location, scheme string) error {
	if l.Scheme != scheme {
		return fmt.Errorf("is for %s:// only", scheme)
	}
	return nil
}

func parseBool(to *bool, value string) (err error) {
	if *to, err = strconv.ParseBool(value); err != nil {
		return fmt.Errorf("%q is neither true nor false", value)
	}
	return nil
}

func setEndpoint(l *Location, value string) error {
	if !strings.Contains(value, "://") {
		value = "https://" + value
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("is not the URL of a server, such as https://minio.example.org:9000")
	}
	if u.User != nil {
		return errors.New("has credentials in it")
	}
	l.Endpoint = strings.TrimSuffix(u.String(), "/")
	if l.Scheme == "s3" {
		l.PathStyle = true // what servers other than Amazon's understand; path_style=false says otherwise
	}
	return nil
}

func setHedge(l *Location, value string) (err error) {
	if l.Hedge, err = time.ParseDuration(value); err != nil || l.Hedge < 0 {
		return fmt.Errorf("%q is not a duration, such as 500ms", value)
	}
	return nil
}

// Parse reads a URL such as "s3://bucket/prefix?region=eu-west-1". Its errors do
// not show what might be a secret.
func Parse(raw string) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil { // its text has all of the URL in it
		return Location{}, errors.New("not a URL")
	}
	l := Location{Scheme: u.Scheme, Bucket: u.Host}
	switch {
	case l.Scheme != "s3" && l.Scheme != "gs" && l.Scheme != "azblob":
		return l, fmt.Errorf("%s:// is none of s3://, gs:// and azblob://", l.Scheme)
	case u.User != nil:
		return l, errors.New("credentials do not belong into the URL: they come from the environment, as the vendor's own tools find them")
	case l.Bucket == "":
		return l, errors.New("has no bucket: it begins as in s3://bucket/prefix")
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return l, errors.New("has a # in it: write %23")
	}
	if l.Prefix, err = parsePrefix(u.Path); err != nil {
		return l, err
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return l, errors.New("what follows the ? is not name=value&name=value")
	}
	// In the order of names, in which endpoint comes before path_style.
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := options[name]
		if !ok {
			return l, fmt.Errorf("unknown option %q: there are %s", name, strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		}
		if values := query[name]; len(values) > 1 {
			return l, fmt.Errorf("option %s is there twice", name)
		} else if err := set(&l, values[0]); err != nil {
			return l, fmt.Errorf("option %s: %w", name, err)
		}
	}
	return l, nil
}

// parsePrefix returns the prefix that the path of a URL stands for.
func parsePrefix(path string) (string, error) {
	path = strings.Trim(path, "/")
	if path == "" {
		return "", nil
	}
	for elem := range strings.SplitSeq(path, "/") {
		if !showable(elem) {
			return "", fmt.Errorf("prefix %q has an element that is no name of a folder", path)
		}
	}
	return path + "/", nil
}

// String is the URL without its query, which tells people which bucket it is.
func (l Location) String() string {
	return strings.TrimSuffix(l.Scheme+"://"+l.Bucket+"/"+l.Prefix, "/")
}
