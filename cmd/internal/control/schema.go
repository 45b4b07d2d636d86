package control

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Field is one field of Status, or of a struct, map or slice within it.
type Field struct {
	Path   string        // in the JSON, such as "tiers[].reads" or "opens.LEVEL.MODE"
	Help   string        // the meaning of the field
	Metric string        // the metric that shows the field, "" if there is none
	Family string        // the meaning of a metric that several fields share, else ""
	Labels []Label       // of the metric
	Value  reflect.Value // the zero value of its type in Schema
}

// A Label is a label of a metric.
type Label struct {
	Name  string
	Value string // "" for a label whose value is the value of the field
}

// Walk calls visit for each field of s, in the order of the JSON. It visits an object before the
// fields of the object. Of a map or a slice, it visits the elements. It skips nil pointers.
func Walk(s *Status, visit func(Field)) {
	walker{visit: visit}.fields(reflect.ValueOf(s).Elem(), "", nil)
}

// Schema returns every field that Walk may visit. A map has one element there, whose key is the
// name of its label in upper case.
func Schema() []Field {
	var all []Field
	walker{schema: true, visit: func(f Field) { all = append(all, f) }}.fields(reflect.ValueOf(&Status{}).Elem(), "", nil)
	return all
}

// A walker visits the fields of a Status.
type walker struct {
	schema bool // maps and slices have one element, and no pointer is nil
	visit  func(Field)
}

// fields visits the fields of a struct. All of its metrics have the labels of scope.
func (w walker) fields(v reflect.Value, path string, scope []Label) {
	t := v.Type()
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("label"); name != "" {
			value := v.Field(i).String()
			if w.schema {
				value = strings.ToUpper(name)
			}
			scope = append(slices.Clip(scope), Label{name, value})
		}
	}
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		if name == "" { // embedded: its fields are in the JSON of this struct
			w.fields(v.Field(i), path, scope)
			continue
		}
		w.value(v.Field(i), Field{
			Path: strings.TrimPrefix(path+"."+name, "."), Help: tag.Get("help"),
			Metric: tag.Get("metric"), Family: tag.Get("family"),
			Labels: append(slices.Clip(scope), labels(tag.Get("labels"))...),
		}, scope)
	}
}

// labels parses the value of a labels tag.
func labels(tag string) []Label {
	var all []Label
	for label := range strings.SplitSeq(tag, ",") {
		if name, value, _ := strings.Cut(label, "="); name != "" {
			all = append(all, Label{name, value})
		}
	}
	return all
}

// value visits f, whose value is v, and the fields within it.
func (w walker) value(v reflect.Value, f Field, scope []Label) {
	switch v.Kind() {
	case reflect.Pointer:
		if w.schema {
			v = reflect.New(v.Type().Elem())
		}
		if !v.IsNil() {
			w.value(v.Elem(), f, scope)
		}
	case reflect.Slice:
		if w.schema {
			v = reflect.MakeSlice(v.Type(), 1, 1)
		}
		f.Path += "[]"
		for i := range v.Len() {
			w.value(v.Index(i), f, scope)
		}
	case reflect.Map:
		w.elements(v, f, scope)
	default:
		f.Value = v
		w.visit(f)
		if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]() {
			w.fields(v, f.Path, scope)
		}
	}
}

// elements visits the elements of a map. The key is the value of the first label without one.
func (w walker) elements(v reflect.Value, f Field, scope []Label) {
	label := slices.IndexFunc(f.Labels, func(l Label) bool { return l.Value == "" })
	visit := func(key string, value reflect.Value) {
		f := f
		f.Path += "." + key
		f.Labels = slices.Clone(f.Labels)
		f.Labels[label].Value = key
		w.value(value, f, scope)
	}
	if w.schema {
		visit(strings.ToUpper(f.Labels[label].Name), reflect.New(v.Type().Elem()).Elem())
		return
	}
	for _, key := range v.MapKeys() {
		visit(key.String(), v.MapIndex(key))
	}
}
