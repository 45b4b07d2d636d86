package blob

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Location identifies a dataset in a bucket, and how to reach the bucket.
type Location struct {
	Scheme string // "s3", "gs" or "azblob"
	Bucket string // Azure: the container
	Prefix string // common prefix of the keys: "", or ends in "/"

	// The options in the query of the URL. Credentials are not among them.
	Region    string        // s3: of the bucket; "" selects that of the environment
	Endpoint  string        // URL of a server other than the vendor's
	PathStyle bool          // s3: the bucket is part of the path, not of the host name
	Account   string        // azblob: the storage account; "" selects that of the environment
	Profile   string        // s3: in the shared configuration; "" selects that of the environment
	Anonymous bool          // requests are not signed
	Hedge     time.Duration // delay before a second request for a read without response; 0: none

	RequesterPays  bool   // s3: requests are charged to the account of the credentials
	BillingProject string // gs: the project to which requests are charged; "": that of the bucket
}

// options has a function for each option of the query, which parses the value.
var options = map[string]func(l *Location, value string) error{
	"region":  func(l *Location, v string) error { l.Region = v; return requireScheme(l, "s3") },
	"profile": func(l *Location, v string) error { l.Profile = v; return requireScheme(l, "s3") },
	"path_style": func(l *Location, v string) error {
		return errors.Join(parseBool(&l.PathStyle, v), requireScheme(l, "s3"))
	},
	"requester_pays": func(l *Location, v string) error {
		return errors.Join(parseBool(&l.RequesterPays, v), requireScheme(l, "s3"))
	},
	"billing_project": func(l *Location, v string) error {
		if l.BillingProject = v; v == "" {
			return errors.New("is empty")
		}
		return requireScheme(l, "gs")
	},
	"account":   func(l *Location, v string) error { l.Account = v; return requireScheme(l, "azblob") },
	"anonymous": func(l *Location, v string) error { return parseBool(&l.Anonymous, v) },
	"endpoint":  setEndpoint,
	"hedge":     setHedge,
}

// requireScheme returns an error unless the location has the scheme.
func requireScheme(l *Location, scheme string) error {
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
		return errors.New("contains credentials")
	}
	l.Endpoint = strings.TrimSuffix(u.String(), "/")
	if l.Scheme == "s3" {
		l.PathStyle = true // most other servers require it; path_style=false overrides it
	}
	return nil
}

func setHedge(l *Location, value string) (err error) {
	if l.Hedge, err = time.ParseDuration(value); err != nil || l.Hedge < 0 {
		return fmt.Errorf("%q is not a duration, such as 500ms", value)
	}
	return nil
}

// Parse parses a URL such as "s3://bucket/prefix?region=eu-west-1". Its errors do not
// contain parts of the URL that may be secret.
func Parse(raw string) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil { // without err, which contains the URL
		return Location{}, errors.New("not a URL")
	}
	l := Location{Scheme: u.Scheme, Bucket: u.Host}
	switch {
	case l.Scheme != "s3" && l.Scheme != "gs" && l.Scheme != "azblob":
		return l, fmt.Errorf("%s:// is none of s3://, gs:// and azblob://", l.Scheme)
	case u.User != nil:
		return l, errors.New("credentials must not be in the URL: set them in the environment, as for the vendor's own tools")
	case l.Bucket == "":
		return l, errors.New("has no bucket: write it as in s3://bucket/prefix")
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return l, errors.New("contains #: write it as %23")
	}
	if l.Prefix, err = parsePrefix(u.Path); err != nil {
		return l, err
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return l, errors.New("has an invalid query: write it as ?name=value&name=value")
	}
	// Sorted, so that path_style follows endpoint and overrides its default.
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := options[name]
		if !ok {
			return l, fmt.Errorf("unknown option %q: the options are %s", name, strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		}
		if values := query[name]; len(values) > 1 {
			return l, fmt.Errorf("option %s is given twice", name)
		} else if err := set(&l, values[0]); err != nil {
			return l, fmt.Errorf("option %s: %w", name, err)
		}
	}
	if l.Anonymous && (l.RequesterPays || l.BillingProject != "") {
		return l, errors.New("nobody can be charged for requests that are not signed: remove anonymous=true, or requester_pays= or billing_project=")
	}
	return l, nil
}

// parsePrefix returns the key prefix for the path of a URL.
func parsePrefix(path string) (string, error) {
	path = strings.Trim(path, "/")
	if path == "" {
		return "", nil
	}
	for elem := range strings.SplitSeq(path, "/") {
		if !isFileName(elem) {
			return "", fmt.Errorf("prefix %q has an element that is not a valid directory name", path)
		}
	}
	return path + "/", nil
}

// isAmazon reports whether a location of S3 is in Amazon's own store.
func (l Location) isAmazon() bool {
	u, err := url.Parse(l.Endpoint)
	return l.Endpoint == "" || err == nil && amazonHost.MatchString(u.Hostname())
}

// amazonHost matches the names of Amazon's servers.
var amazonHost = regexp.MustCompile(`\.amazonaws\.com(\.cn)?$`)

// String returns the URL without its query.
func (l Location) String() string {
	return strings.TrimSuffix(l.Scheme+"://"+l.Bucket+"/"+l.Prefix, "/")
}
